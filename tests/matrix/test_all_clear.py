"""A run with a NaN, in every format: no command reports it as healthy."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from probe.cli import app
from probe.core.analysis.anomaly_processor import main
from tests.matrix.harness import Harness, train_step
from tests.matrix.models import X, tiny_net
from tests.matrix.watching import LR, MOMENTUM, watching
from tests.required import require

require("duckdb")
require("tensorboardX")


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Output directory of runs."""
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(tmp_path / "out"))
    return tmp_path / "out"


def train(framework: Harness, form: str | list[str], bad: int | None = 2, dump: bool = True) -> None:
    """Four steps; at step ``bad`` the input is NaN."""
    model = tiny_net(framework)
    optimizer = framework.optimizer("momentum", model, lr=LR, momentum=MOMENTUM)
    loop = framework.loop(model, optimizer)
    alert = {"rules": [{"rule_name": "AnomalyNan"}], "dump": dump}
    config = {"xy_distribution": True, "wg_distribution": True, "ops": ["norm", "max"], "format": form, "alert": alert}
    with watching(framework, config, model, optimizer) as monitor:
        for step in range(4):
            train_step(loop, framework.tensor(X * np.nan if step == bad else X))
        assert monitor.flush()
        assert bool(monitor.findings) == (bad is not None)


def anomalies(root: Path) -> tuple[Result, str]:
    done = CliRunner().invoke(app, ["anomalies", str(root), "--why"])
    return done, " ".join(done.output.split())


@pytest.mark.parametrize("form", ["csv", "sqlite"])
def test_rows_are_judged(framework: Harness, root: Path, form: str) -> None:
    """The input of the third step is the first cause, whatever the rows were written as."""
    train(framework, form, dump=False)
    done, said = anomalies(root)
    assert done.exit_code == 1
    assert said.startswith("critical: bad batch in .input, step 2")
    assert "It began in .input (activation: module inputs and outputs) in the root module" in said
    assert "step 2, micro step 0: norm nan" in said
    assert ("monitor_metrics.db" in said) == (form == "sqlite")


@pytest.mark.parametrize("form", ["tensorboard", "api"])
@pytest.mark.parametrize("dump", [True, False])
def test_what_the_run_found_is_said(framework: Harness, root: Path, form: str, dump: bool) -> None:
    """Nothing can be judged: exit code 2, with the known findings."""
    train(framework, form, dump=dump)
    done, said = anomalies(root)
    assert done.exit_code == 2
    assert "Nothing was found" not in said
    if form == "tensorboard" or dump:
        assert "nothing could be judged" in said
    if dump:
        assert "0:.input:0/rank0/actv" in said or "It began in .input" in said


def test_a_healthy_run_after_it(framework: Harness, root: Path) -> None:
    """Neither command reports the NaN of the run before."""
    train(framework, "csv")
    train(framework, "csv", bad=None)
    done, said = anomalies(root)
    assert done.exit_code == 0
    assert "Nothing was found in what was judged: 1 rank, 4 sampled steps" in said
    folder = root / "anomaly_detected"
    assert main(["-d", str(folder)]) == 0
    assert json.loads((folder / "anomaly_analyse.json").read_text()) == {}
    assert main(["-d", str(folder), "--run", "all"]) == 0
    assert json.loads((folder / "anomaly_analyse.json").read_text())
