"""Steps that reach the files, and the effects of the steps between them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.matrix.harness import Harness, train_step
from tests.matrix.models import tiny_net
from tests.matrix.watching import EVERYTHING, LR, MOMENTUM, inputs, rows_of, train_tiny, watching
from tests.tables import Row, Rows

SIGNALS = {"actv", "actv_grad", "grad_reduced", "grad_unreduced", "param_origin", "param_updated"}


def steps_of(rows: Rows) -> dict[str, list[int]]:
    """The steps of each signal; state is left out, which begins later."""
    signals = {row.signal for row in rows} - {"momentum_buffer"}
    return {signal: sorted({row.step for row in rows if row.signal == signal}) for signal in signals}


@pytest.mark.parametrize(
    ("schedule", "start_iteration", "expected"),
    [
        ({}, 0, [0, 1, 2, 3, 4, 5]),
        ({"start_step": 4}, 0, [4, 5]),
        ({"step_interval": 3}, 0, [0, 3]),
        ({"start_step": 1, "step_interval": 2, "collect_times": 2}, 0, [1, 3]),
        ({"collect_times": 2}, 0, [0, 1]),
        ({}, 7, [7, 8, 9, 10, 11, 12]),
        ({"start_step": 9, "step_interval": 2}, 7, [9, 11]),
        ({"start_step": 3}, 100, [100, 101, 102, 103, 104, 105]),
        ({"start_step": 2, "step_interval": 2}, 0, [2, 4]),
        ({"start_step": 6, "step_interval": 4}, 5, [6, 10]),
        ({"start_step": 2, "step_interval": 5, "collect_times": 1}, 5, [7]),
    ],
    ids=lambda value: str(value) if isinstance(value, (dict, int)) else "",
)
def test_every_signal_is_sampled_at_the_scheduled_steps(
    framework: Harness, schedule: dict[str, int], start_iteration: int, expected: list[int]
) -> None:
    """start_step, step_interval, collect_times and start_iteration choose the same steps for all signals."""
    monitor, rows = train_tiny(framework, EVERYTHING | schedule, (1,) * 6, start_iteration=start_iteration)
    assert steps_of(rows) == dict.fromkeys(SIGNALS, expected)
    assert monitor.step == start_iteration + 6 or not monitor.monitoring
    manifest = json.loads((Path(monitor.output_directory or "") / "manifest.json").read_text())
    assert manifest["cost_seconds"]["steps"] == len(expected)


@pytest.mark.parametrize("schedule", [{"collect_times": 0}, {"start_step": 99}], ids=str)
def test_a_run_of_which_nothing_is_sampled(framework: Harness, schedule: dict[str, int]) -> None:
    """collect_times 0, and a start that is never reached, leave no table."""
    _, rows = train_tiny(framework, EVERYTHING | schedule, (1, 2))
    assert rows == {}


def test_sampled_steps_see_all_their_micro_batches(framework: Harness) -> None:
    """Between sampled steps micro batches are not counted, yet those of a sampled step are numbered from 0."""
    config = EVERYTHING | {"step_interval": 2, "monitor_mbs_grad": True}
    _, rows = train_tiny(framework, config, (3, 2, 3, 1, 2))
    expected = {(0, 0), (0, 1), (0, 2), (2, 0), (2, 1), (2, 2), (4, 0), (4, 1)}
    for signal in ("actv", "actv_grad", "grad_unreduced"):
        assert {(row.step, row.micro_step) for row in rows if row.signal == signal} == expected


@pytest.mark.parametrize("schedule", [{"start_step": 3}, {"step_interval": 3}], ids=str)
def test_the_values_of_a_step_do_not_depend_on_the_schedule(framework: Harness, schedule: dict[str, Any]) -> None:
    """The rows of step 3 are the same whether the steps before it were sampled or not."""
    every, some = (train_tiny(framework, EVERYTHING | extra, (2,) * 4)[1] for extra in ({}, schedule))
    wanted = {row: values for row, values in every.items() if row.step == 3}
    assert {row: values for row, values in some.items() if row.step == 3} == wanted
    assert Row("momentum_buffer", 3, "fc.weight") in wanted


def test_the_step_is_counted_whether_sampled_or_not(framework: Harness) -> None:
    """``step`` is the number of the training step in progress, ``monitoring`` whether anything will still come."""
    model = tiny_net(framework)
    optimizer = framework.optimizer("momentum", model, lr=LR, momentum=MOMENTUM)
    loop = framework.loop(model, optimizer)
    config = EVERYTHING | {"step_interval": 2, "collect_times": 2}
    seen = []
    with watching(framework, config, model, optimizer, start_iteration=10) as monitor:
        for _ in range(4):
            seen.append((monitor.step, monitor.monitoring))
            train_step(loop, *inputs(framework))
    assert seen == [(10, True), (11, True), (12, True), (13, False)]
    assert {row.step for row in rows_of(monitor)} == {10, 12}


def test_a_budget_stretches_the_interval(framework: Harness) -> None:
    """A toy's step costs less than watching it: few steps are sampled, and the manifest has the number of those left
    out."""
    config = EVERYTHING | {"max_overhead": 0.02}
    model = tiny_net(framework)
    optimizer = framework.optimizer("momentum", model, lr=0.001, momentum=0.5)
    loop = framework.loop(model, optimizer)
    with watching(framework, config, model, optimizer) as monitor:
        for _ in range(60):
            train_step(loop, *inputs(framework, 1))
    steps = sorted({row.step for row in rows_of(monitor)})
    manifest = json.loads((Path(monitor.output_directory or "") / "manifest.json").read_text())
    assert steps[:3] == [0, 1, 2]
    assert len(steps) < 15
    assert manifest["pace"]["skipped"] == 60 - len(steps)
    assert manifest["pace"]["interval"] > 4
    assert manifest["cost_seconds"]["overhead"] == pytest.approx(monitor.cost["overhead"], rel=0.5)
    assert monitor.cost["overhead"] > 0
