"""Format prometheus in a run: the latest numbers of this rank, for a reader in another process."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probe.core.output.metrics.mapped_file import MetricsReader
from probe.core.run_state.progress_file import ProgressReader
from tests.matrix.harness import Harness, train_step
from tests.matrix.models import X
from tests.matrix.test_run_numbers import Training
from tests.matrix.watching import LR, rows_of

SHOWN: dict[str, Any] = {"format": ["csv", "prometheus"], "wg_distribution": True, "ops": ["norm", "max"]}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder in which the ranks of this test show their progress."""
    monkeypatch.setenv("PROBE_PROGRESS_DIR", str(tmp_path / "progress"))
    return tmp_path / "progress"


def shown(folder: Path) -> dict[tuple[str, ...], float]:
    """Every series of the only rank, by metric and labels."""
    (path,) = folder.rglob("*.metrics")
    series, values = MetricsReader(path).read()
    return {
        (each.metric.removeprefix("probe_"), *each.labels): value for each, value in zip(series, values, strict=True)
    }


def test_the_latest_numbers_are_those_of_the_files(framework: Harness, folder: Path) -> None:
    """Norms by layer, numbers of the run, findings and the monitor's own cost; nothing is left after the end."""
    training = Training(framework, **SHOWN).begin()
    for step in range(4):
        training.step(loss=float(step), own=2.5)
    training.monitor.flush()
    found = shown(folder)
    assert found["training_step",] == 3
    assert found["training_steps_total",] == 4
    assert found["training_loss",] == 3.0
    assert found["training_number", "own"] == 2.5
    assert found["training_learning_rate",] == pytest.approx(LR)
    assert found["training_step_seconds",] > 0
    assert found["findings_total", "AnomalyNan"] == 0
    assert found["faults_total",] == 0
    assert found["overhead_ratio",] > 0
    (progress,) = folder.rglob("*.progress")
    assert (row := ProgressReader(progress).row()) is not None
    assert (row.step, row.phase) == (3, "step")
    training.monitor.stop()
    rows = {row: numbers for row, numbers in rows_of(training.monitor).items() if row.step == 3 and "norm" in numbers}
    norms = {name[1:]: value for name, value in found.items() if name[0] == "tensor_norm"}
    assert norms == pytest.approx({(row.signal, row.name): rows[row]["norm"] for row in rows}, rel=1e-5)
    assert len(norms) == sum(name[0] == "tensor_max" for name in found) > 0
    assert not list(folder.rglob("*.metrics")) + list(folder.rglob("*.progress"))


def test_numbers_of_the_run_go_on_where_nothing_is_collected(framework: Harness, folder: Path) -> None:
    """Every step counts, also between sampled ones and after the last of them; a NaN loss is a finding of a rule."""
    training = Training(framework, format="prometheus", collect_times=2).begin()
    for step in range(6):
        training.step(loss=math.nan if step == 5 else 1.0)
    training.monitor.flush()
    found = shown(folder)
    assert found["training_step",] == 5
    assert math.isnan(found["training_loss",])
    assert found["findings_total", "RunNan"] == 1
    training.monitor.stop()
    assert training.monitor.faults == {}


def test_limits_of_the_user_hold_for_numbers_of_the_run(framework: Harness, folder: Path) -> None:
    """The rule for rows judges them as well, once until they are back: those that the program logs, and the rate."""
    names = {"ops": ["loss", "learning_rate"], "above": 5.0}, {"ops": ["value"], "names": ["acc*"], "below": 0.1}
    rules = [{"rule_name": "AnomalyThreshold", "args": args} for args in names]
    training = Training(framework, format=["csv", "prometheus"], alert={"rules": rules}).begin()
    for loss in (1.0, 7.0, 8.0, *[1.0] * 3, 9.0, 1.0):
        training.step(loss=loss, accuracy=0.05, error=0.05)
    training.monitor.flush()
    assert shown(folder)["findings_total", "AnomalyThreshold"] == 3
    training.monitor.stop()


def test_weights_are_the_same_with_it(framework: Harness, folder: Path) -> None:
    """Training gives the same bits with and without the formats."""
    weights = []
    for config in (SHOWN, {"format": "api"}):
        training = Training(framework, **config).begin()
        for _ in range(3):
            training.step(loss=1.0)
        training.monitor.stop()
        weights.append(framework.weights(training.model))
    one, other = weights
    assert one
    for name, weight in one.items():
        np.testing.assert_array_equal(weight, other[name])


def test_a_monitor_that_is_dropped_leaves_nothing(framework: Harness, folder: Path) -> None:
    """Attaching anew after stop() shows the new run; its file goes with it."""
    training = Training(framework, **SHOWN).begin()
    training.step(loss=1.0)
    training.monitor.stop()
    training.begin(10)
    train_step(training.loop, framework.tensor(X))
    training.monitor.flush()
    assert shown(folder)["training_step",] == 10
    training.monitor.stop()
    assert list(folder.iterdir()) == []
