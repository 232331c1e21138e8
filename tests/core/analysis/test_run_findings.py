"""Numbers of the run, judged again from the files of all ranks."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner

from probe.cli import app
from probe.core.naming import STEP_SECONDS
from tests.required import require

require("duckdb")

STEPS = 120
HEADER = "vpp_stage,name,step,value,shape,dtype\n"


def written(root: Path, rank: int, numbers: Callable[[int], Mapping[str, float]]) -> None:
    """A directory of ``rank`` with these numbers of each step, and a gradient that nothing is wrong with."""
    directory = root / f"Dec03_21-34-40-rank{rank}-0123abcd"
    directory.mkdir(parents=True)
    rows = "".join(
        f"0,{name},{step},{value!r},[],float64\n" for step in range(STEPS) for name, value in numbers(step).items()
    )
    (directory / "run_0-199.csv").write_text(HEADER + rows, encoding="utf-8")
    gradient = "".join(f"0,fc.weight,{step},1.0,[2],torch.float32\n" for step in range(STEPS))
    (directory / "grad_reduced_0-199.csv").write_text(HEADER.replace("value", "norm") + gradient, encoding="utf-8")


def found(root: Path) -> tuple[int, list[dict[str, object]], str]:
    """The exit code, the findings about the run, and what people read."""
    machine = CliRunner().invoke(app, ["anomalies", str(root), "--json"])
    people = CliRunner().invoke(app, ["anomalies", str(root)])
    assert machine.exit_code == people.exit_code
    return machine.exit_code, json.loads(machine.stdout)["run_numbers"], people.stdout


def healthy(step: int) -> dict[str, float]:
    return {"loss": 2.0 + 0.01 * math.sin(step * 1.7), STEP_SECONDS: 0.5, "phase/data_seconds": 0.1}


def test_healthy_numbers_give_none(tmp_path: Path) -> None:
    """Nothing is found, and the exit code says so."""
    for rank in range(3):
        written(tmp_path, rank, healthy)
    code, findings, text = found(tmp_path)
    assert (code, findings) == (0, [])
    assert "Numbers of the run" not in text


@pytest.mark.parametrize(
    ("value", "rule"), [(math.nan, "RunNan"), (math.inf, "RunNan"), (40.0, "RunSpike")], ids=["nan", "inf", "spike"]
)
def test_a_loss_that_goes_wrong_is_named(tmp_path: Path, value: float, rule: str) -> None:
    """With its rank and step, though no tensor shows anything."""
    written(tmp_path, 0, healthy)
    written(tmp_path, 1, lambda step: healthy(step) | ({"loss": value} if step == 90 else {}))
    code, findings, text = found(tmp_path)
    assert code == 1
    assert [(each["rank"], each["rule"], each["name"], each["step"]) for each in findings] == [(1, rule, "loss", 90)]
    assert "rank 1, step 90" in text


def test_a_rank_that_waits_for_its_data_is_named(tmp_path: Path) -> None:
    """Ranks train in step, so that the seconds of steps are alike; the phase tells which one is slow."""
    for rank in range(4):
        written(
            tmp_path, rank, lambda step, rank=rank: healthy(step) | ({"phase/data_seconds": 0.4} if rank == 2 else {})
        )
    _, findings, _ = found(tmp_path)
    assert [(each["rank"], each["rule"], each["value"]) for each in findings] == [(2, "RunStraggler", 0.4)]


def test_limits_of_the_user_are_judged_again(tmp_path: Path) -> None:
    """As the configuration of the run has set them."""
    written(tmp_path, 0, lambda step: healthy(step) | {"accuracy": 0.5 if step == 70 else 0.9})
    limit = {"rule_name": "AnomalyThreshold", "args": {"ops": ["value"], "names": ["acc*"], "below": 0.8}}
    (directory,) = tmp_path.iterdir()
    manifest = {"config": {"alert": {"rules": [limit]}}}
    (directory / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    _, findings, _ = found(tmp_path)
    assert [(each["rule"], each["name"], each["step"]) for each in findings] == [("AnomalyThreshold", "accuracy", 70)]


def test_a_nan_in_a_layer_stands_before_the_loss(tmp_path: Path) -> None:
    """The first cause stays the tensor's, in the same step."""
    written(tmp_path, 0, lambda step: healthy(step) | ({"loss": math.nan} if step >= 90 else {}))
    path = next(tmp_path.glob("*/grad_reduced_0-199.csv"))
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(line.replace("1.0", "nan") if ",90," in line else line for line in lines), encoding="utf-8")
    result = json.loads(CliRunner().invoke(app, ["anomalies", str(tmp_path), "--json"]).stdout)
    assert result["diagnosis"]["first"]["step"] == 90
    assert "grad_reduced" not in {each["name"] for each in result["run_numbers"]}
    assert [each["name"] for each in result["run_numbers"]] == ["loss"]
    assert all(each.get("signal") != "run" for each in result["kept"])
    listed = [(e["grade"], e["kind"], e["where"], e["rank"], e["step"]) for e in result["findings"]]
    assert listed == [("critical", "NaN", "fc.weight", 0, 90), ("critical", "RunNan", "loss", 0, 90)]
    assert result["number"] == 1
