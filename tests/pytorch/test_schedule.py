"""Which steps of a real run reach the files."""

from __future__ import annotations

from pathlib import Path

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


@pytest.mark.parametrize("schedule", [{"collect_times": 0}, {"start_step": 99}])
def test_a_run_of_which_nothing_is_sampled(output_dir: Path, schedule: dict[str, int]) -> None:
    """collect_times 0 collects nothing, and so does a start that is never reached: no table, no cost."""
    train_tiny(EVERYTHING | schedule, steps=3)
    assert tables(output_dir) == {}
    assert manifest(output_dir)["cost_seconds"].get("hooks", 0) == 0


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
