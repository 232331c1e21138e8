"""Which steps of a real run reach the files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from probe.pytorch import TrainerMon
from tests.pytorch.runs import manifest, one_step, tables, train_tiny, watching
from tests.pytorch.toys import TinyNet
from tests.required import require

torch = require("torch")

EVERYTHING = {
    "wg_distribution": True,
    "xy_distribution": True,
    "param_distribution": True,
    "mv_distribution": True,
    "step_count_per_record": 1000,
}
SIGNALS = {"actv", "actv_grad", "grad_reduced", "grad_unreduced", "param_origin", "param_updated"}


def steps_of(root: Path) -> dict[str, list[int]]:
    """Steps in the file of each signal."""
    found = {name.removesuffix("_0-999"): rows for name, rows in tables(root).items()}
    return {name: sorted({int(row["step"]) for row in rows}) for name, rows in found.items()}


@pytest.mark.parametrize(
    ("schedule", "start_iteration", "expected"),
    [
        ({}, 0, [0, 1, 2, 3, 4, 5, 6, 7]),
        ({"start_step": 6}, 0, [6, 7]),
        ({"step_interval": 3}, 0, [0, 3, 6]),
        ({"start_step": 2, "step_interval": 2}, 0, [2, 4, 6]),
        ({"collect_times": 2}, 0, [0, 1]),
        ({"start_step": 1, "step_interval": 2, "collect_times": 2}, 0, [1, 3]),
        ({"start_step": 5}, 5, [5, 6, 7, 8, 9, 10, 11, 12]),
        ({"start_step": 6, "step_interval": 4}, 5, [6, 10]),
        ({"start_step": 2, "step_interval": 5, "collect_times": 1}, 5, [7]),
        ({"start_step": 3}, 100, list(range(100, 108))),
    ],
)
def test_every_signal_is_sampled_at_the_scheduled_steps(
    output_dir: Path, schedule: dict[str, int], start_iteration: int, expected: list[int]
) -> None:
    """start_step, step_interval and collect_times choose the same steps for all signals, also in a resumed run."""
    train_tiny(EVERYTHING | schedule, steps=8, start_iteration=start_iteration)
    assert steps_of(output_dir) == dict.fromkeys(SIGNALS, expected)
    assert manifest(output_dir)["cost_seconds"]["steps"] == len(expected)


@pytest.mark.parametrize("schedule", [{"collect_times": 0}, {"start_step": 99}])
def test_a_run_of_which_nothing_is_sampled(output_dir: Path, schedule: dict[str, int]) -> None:
    """collect_times 0 collects nothing, and so does a start that is never reached: no table, no cost."""
    train_tiny(EVERYTHING | schedule, steps=3)
    assert tables(output_dir) == {}
    assert manifest(output_dir)["cost_seconds"].get("hooks", 0) == 0


def test_sampled_steps_see_all_their_micro_batches(output_dir: Path) -> None:
    """Between sampled steps micro batches are not counted, yet those of a sampled step are numbered from 0."""
    train_tiny(EVERYTHING | {"step_interval": 2, "monitor_mbs_grad": True}, steps=5, micro_batches=3)
    for name in ("actv", "actv_grad", "grad_unreduced"):
        rows = tables(output_dir)[f"{name}_0-999"]
        found = {(row["step"], row["micro_step"]) for row in rows}
        assert found == {(step, micro) for step in "024" for micro in "012"}


def test_the_values_of_a_sampled_step_do_not_depend_on_the_schedule(tmp_path: Path, monkeypatch: Any) -> None:
    """The rows of step 4 are the same whether the steps before it were sampled or not."""
    written = []
    for schedule in ({}, {"start_step": 4}, {"step_interval": 4}):
        root = tmp_path / str(len(written))
        monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(root))
        train_tiny(EVERYTHING | schedule, steps=5)
        written.append({name: [r for r in rows if r["step"] == "4"] for name, rows in tables(root).items()})
    assert written[0] == written[1] == written[2]


def test_monitoring_ends_after_the_last_step_and_takes_its_hooks_away(output_dir: Path) -> None:
    """After collect_times steps the model is as it was found, the files are closed, and training goes on."""
    model = TinyNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching(EVERYTHING | {"collect_times": 2}, model, optimizer) as monitor:
        for _ in range(2):
            assert monitor.monitoring
            one_step(model, optimizer)
        assert not monitor.monitoring
        one_step(model, optimizer)
        assert "findings" in manifest(output_dir)
        hooks = (module._forward_hooks or module._forward_pre_hooks for module in model.modules())
        assert not any(hooks)
        one_step(model, optimizer)
        assert steps_of(output_dir) == {signal: [0, 1] for signal in SIGNALS}


def test_the_step_is_counted_whether_sampled_or_not() -> None:
    """``step`` is the number of the training step in progress."""
    model = TinyNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching({"wg_distribution": True, "step_interval": 3}, model, optimizer, start_iteration=7) as monitor:
        seen = []
        for _ in range(3):
            seen.append(monitor.step)
            one_step(model, optimizer)
    assert (seen, monitor.step) == ([7, 8, 9], 10)


def test_values_of_unsampled_steps_cannot_be_asked_for() -> None:
    """After a step that was not sampled there is nothing to give, not even the last sampled one's."""
    model = TinyNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with TrainerMon({"wg_distribution": True, "format": "api", "step_interval": 2}) as monitor:
        monitor.set_monitor(model, 1, optimizer)
        found = []
        for _ in range(3):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            found.append(bool(monitor.generate_wgrad_metrics()[0]))
    assert found == [True, False, True]
