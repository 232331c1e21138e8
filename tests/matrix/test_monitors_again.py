"""Several monitors of one model: the same cell of a notebook again, and two on purpose."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from tests.matrix.harness import Harness, train_step
from tests.matrix.models import tiny_net
from tests.matrix.test_dropping import deliveries
from tests.matrix.watching import EVERYTHING, LR, MOMENTUM, inputs, rows_of


def attached(framework: Harness, settings: dict[str, Any], model: Any, optimizer: Any) -> Any:
    monitor = framework.TrainerMon(settings)
    monitor.set_monitor(model, 1, optimizer)
    return monitor


@pytest.mark.parametrize("kept", [False, True], ids=["dropped", "kept"])
@pytest.mark.parametrize("anew", [False, True], ids=["", "with a new optimizer"])
def test_a_cell_that_runs_again(framework: Harness, kept: bool, anew: bool, caplog: pytest.LogCaptureFixture) -> None:
    """A monitor of the same configuration replaces the one before, which is ended with a warning: one set of hooks and
    one thread remain, and each run has its own steps."""
    before, model = deliveries(), tiny_net(framework)
    optimizer = framework.optimizer("momentum", model, lr=LR / 8, momentum=MOMENTUM)
    monitors, directories = [], []
    for _ in range(3):
        if anew:
            optimizer = framework.optimizer("momentum", model, lr=LR / 8, momentum=MOMENTUM)
        monitor = attached(framework, EVERYTHING, model, optimizer)
        if kept:
            monitors.append(monitor)
        directories.append(monitor.output_directory)
        loop = framework.loop(model, optimizer)
        for _ in range(2):
            train_step(loop, *inputs(framework))
        gc.collect()
        assert len(deliveries() - before) == 1
    monitor.stop()
    assert monitor.faults == {}
    assert len(set(directories)) == 3
    assert {row.step for row in rows_of(monitor)} == {0, 1}
    warnings = [record.getMessage() for record in caplog.records if "of the same configuration" in record.getMessage()]
    assert len(warnings) == 2
    for directory, warning in zip(directories, warnings, strict=False):
        assert str(directory) in warning


@pytest.mark.parametrize("different", ["configuration", "parameters"])
def test_two_monitors_on_purpose(framework: Harness, different: str, caplog: pytest.LogCaptureFixture) -> None:
    """Monitors that differ in their configuration, or in the parameters of their optimizers, watch side by side."""
    first, second = (framework.linear([[1.0, -0.5], [0.25, 1.0]]) for _ in range(2))
    model = framework.module(lambda x: second(first(x)), first=first, second=second)
    parts = (model, model) if different == "configuration" else (first, second)
    optimizers = [framework.optimizer("momentum", part, lr=LR / 8, momentum=MOMENTUM) for part in parts]
    optimizers = optimizers[:1] * 2 if different == "configuration" else optimizers
    more = {"step_interval": 2} if different == "configuration" else {}
    one = attached(framework, EVERYTHING, model, optimizers[0])
    two = attached(framework, EVERYTHING | more, model, optimizers[1])
    loop = framework.loop(model, *dict.fromkeys(optimizers))
    for _ in range(3):
        train_step(loop, *inputs(framework))
    for monitor in (one, two):
        monitor.stop()
    assert {row.step for row in rows_of(one)} == {0, 1, 2}
    assert {row.step for row in rows_of(two)} == ({0, 2} if more else {0, 1, 2})
    assert "of the same configuration" not in caplog.text
