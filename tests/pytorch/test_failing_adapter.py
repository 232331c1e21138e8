"""Functions of the adapter that only some trainings call, each made to fail: checkpointing, loss scales, large weights,
gradients that are there before."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from tests.matrix.test_failing_adapter import SETTINGS, Switch, breakable
from tests.required import require

torch = require("torch")

from torch.utils.checkpoint import checkpoint  # noqa: E402

from probe.pytorch import TrainerMon  # noqa: E402

RARE = (
    *("hooks.recomputed_by", "hooks.held_scale", "hooks.holds", "hooks.loss_scale"),
    *("tensors.adam", "tensors.unchanged", "tensors.identity", "arrays.on_host"),
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
