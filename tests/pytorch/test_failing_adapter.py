"""Functions of the adapter that only some trainings call, each made to fail: checkpointing, loss scales, large weights,
gradients that are there before."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from tests.matrix.test_failing_adapter import SETTINGS, Injected, Switch, breakable, functions
from tests.required import require

torch = require("torch")

from torch.utils.checkpoint import checkpoint  # noqa: E402

from probe.pytorch import TrainerMon  # noqa: E402

RARE = (
    *("hooks.recomputed_by", "hooks.held_scale", "hooks.holds", "hooks.loss_scale"),
    *("tensors.adam", "tensors.identity", "arrays.on_host"),
)
WIDE = 80


class Checkpointed(torch.nn.Module):
    """A layer, and one that is computed again in the backward."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.inner = torch.nn.Linear(WIDE, WIDE), torch.nn.Linear(WIDE, WIDE)
        self.exact = torch.nn.Parameter(torch.ones(WIDE, WIDE, dtype=torch.float64) / WIDE)  # not read where it lies

    def forward(self, x: Any) -> Any:
        return checkpoint(self.inner, self.fc(x) @ self.exact.float(), use_reentrant=True)


class Training:
    """A training with a loss scale, and with steps from gradients that no backward has put there."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = Checkpointed()
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        self.inputs = torch.Generator().manual_seed(1)

    def step(self, read: Callable[[], object] = lambda: None) -> list[bytes]:
        """The weights after two more updates; ``read`` is called before the first."""
        loss = self.model(torch.randn(8, WIDE, generator=self.inputs)).pow(2).mean()
        self.scaler.scale(loss).backward()
        read()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        for name, parameter in self.model.named_parameters():
            parameter.grad = None if name == "exact" else torch.ones_like(parameter)  # that one is not updated
        self.optimizer.step()
        self.optimizer.zero_grad()
        return [parameter.detach().numpy().tobytes() for parameter in self.model.parameters()]


def test_a_function_that_few_trainings_call_leaves_training_as_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The weights are those of a training without a monitor, bit by bit, and each function has been called."""
    caplog.set_level(logging.CRITICAL, "probe")
    switch = Switch()
    monkeypatch.setattr(TrainerMon, "framework", breakable(TrainerMon.framework, switch))
    alone, watched = Training(), Training()
    monitor = TrainerMon(SETTINGS | {"l2_targets": {"linear_hook": ["fc"]}, "ops": ["mean", "norm"]})
    monitor.set_monitor(watched.model, 1, watched.optimizer)
    for name in RARE:
        switch.failing = {name}
        for _ in range(2):
            assert watched.step(monitor.generate_wgrad_metrics) == alone.step(), name
        switch.failing = set()
    monitor.stop()
    assert switch.called == set(RARE)


class Clipped:
    """A training with micro batches, checkpoints that cut the graph, a clip and a loss that is not finite."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = Checkpointed()
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 100)
        self.inputs = torch.Generator().manual_seed(1)

    def step(self, factor: float = 1.0) -> list[bytes]:
        """The weights after another update."""
        for _ in range(2):
            x = torch.randn(8, WIDE, generator=self.inputs)
            checkpoint(self.model.inner, x, use_reentrant=True)
            (self.model(x).pow(2).mean() * factor).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)
        for _ in range(2):
            self.schedule.step()
        return [parameter.detach().numpy().tobytes() for parameter in self.model.parameters()]


OF_RANKS = {"loop.own_gradients", "loop.part_ways"}
"""Functions that a process alone does not call: tests/distributed/test_failing_adapter.py."""
LOOP = [name for name in functions(TrainerMon.framework) if name.startswith("loop.") and name not in OF_RANKS]


@pytest.mark.parametrize("name", LOOP)
def test_a_function_of_the_training_loop_that_fails(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It fails from the beginning of a run: training is as without a monitor, and each failure is counted; when it
    works again, the sentinel goes on."""
    caplog.set_level(logging.CRITICAL, "probe")
    switch = Switch()
    monkeypatch.setattr(TrainerMon, "framework", breakable(TrainerMon.framework, switch))
    alone, watched = Clipped(), Clipped()
    monitor, steps = TrainerMon({"format": "api", "alert": {"rules": []}, "sentinel": {"enable": True}}), []
    if name.startswith("loop.on_"):  # before training begins
        switch.failing = {name}
        with pytest.raises(Injected):
            monitor.set_monitor(watched.model, 1, watched.optimizer)
        switch.failing = set()
        assert watched.step() == alone.step()
        return
    monitor.set_monitor(watched.model, 1, watched.optimizer)
    monitor.on_run_step(lambda step: steps.append(step.values))
    for _ in range(2 * (name == "loop.overrun")):  # it is called once the schedule has a habit
        assert watched.step() == alone.step()
    switch.failing = {name}
    for factor in (1.0, 1.0, float("inf")):
        assert watched.step(factor) == alone.step(factor)
    assert monitor.flush()
    assert sum(monitor.faults.values()) > 0
    switch.failing, before = set(), monitor.faults
    for _ in range(3):
        assert watched.step() == alone.step()
    assert monitor.flush()
    assert monitor.faults == before
    assert steps[-1]["backwards"] == 2.0
    monitor.stop()
