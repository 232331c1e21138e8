"""``RunRate`` on every schedule of PyTorch: silent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from probe.core.run_state.rules import RUN_RULES
from tests.core.run_state.run_steps import found, places, steps_of
from tests.required import require

torch = require("torch")
schedules = torch.optim.lr_scheduler

STEPS = 240
Make = Callable[[Any], Any]


def chained(optimizer: Any) -> Any:
    """A warm-up by a constant, with a decay on top of it."""
    return schedules.ChainedScheduler(
        [schedules.ConstantLR(optimizer, 0.01, total_iters=30), schedules.ExponentialLR(optimizer, 0.98)]
    )


def sequential(optimizer: Any) -> Any:
    """A tiny constant rate, a warm-up, then cosines that start again."""
    parts = [
        schedules.ConstantLR(optimizer, 1e-4, total_iters=50),
        schedules.LinearLR(optimizer, 1e-3, total_iters=20),
        schedules.CosineAnnealingWarmRestarts(optimizer, 20),
    ]
    return schedules.SequentialLR(optimizer, parts, milestones=[50, 70])


MAKERS: dict[str, list[Make]] = {
    "LambdaLR": [
        lambda o: schedules.LambdaLR(o, lambda n: min(1.0, n / 100)),
        lambda o: schedules.LambdaLR(o, lambda n: max(0.0, 1 - n / 100)),
        lambda o: schedules.LambdaLR(o, lambda n: 64**-0.5 * min((n + 1) ** -0.5, (n + 1) * 100**-1.5)),
        lambda o: schedules.LambdaLR(o, lambda n: [1e-6, 2e-1, 4e-1, 6e-1, 8e-1, 1.0][min(n // 30, 5)]),
    ],
    "MultiplicativeLR": [lambda o: schedules.MultiplicativeLR(o, lambda n: 0.95 if n % 50 else 1.5)],
    "StepLR": [lambda o: schedules.StepLR(o, 30), lambda o: schedules.StepLR(o, 60, 1e-3)],
    "MultiStepLR": [lambda o: schedules.MultiStepLR(o, [40, 41, 90, 150], 0.01)],
    "ConstantLR": [schedules.ConstantLR, lambda o: schedules.ConstantLR(o, 1e-5, 60)],
    "LinearLR": [schedules.LinearLR, lambda o: schedules.LinearLR(o, 1e-6, total_iters=100)],
    "ExponentialLR": [lambda o: schedules.ExponentialLR(o, 0.5), lambda o: schedules.ExponentialLR(o, 1.05)],
    "SequentialLR": [sequential],
    "ChainedScheduler": [chained],
    "CosineAnnealingLR": [lambda o: schedules.CosineAnnealingLR(o, 20), lambda o: schedules.CosineAnnealingLR(o, 300)],
    "PolynomialLR": [lambda o: schedules.PolynomialLR(o, 100, 3.0)],
    "ReduceLROnPlateau": [lambda o: schedules.ReduceLROnPlateau(o, patience=3)],
    "CyclicLR": [
        lambda o: schedules.CyclicLR(o, 1e-6, 0.1, 1, cycle_momentum=False),
        lambda o: schedules.CyclicLR(o, 1e-6, 0.1, 20, mode="triangular2", cycle_momentum=False),
        lambda o: schedules.CyclicLR(o, 1e-6, 0.1, 5, mode="exp_range", gamma=0.99, cycle_momentum=False),
    ],
    "CosineAnnealingWarmRestarts": [
        lambda o: schedules.CosineAnnealingWarmRestarts(o, 10, 2),
        lambda o: schedules.CosineAnnealingWarmRestarts(o, 60),
    ],
    "OneCycleLR": [
        lambda o: schedules.OneCycleLR(o, 0.1, STEPS, cycle_momentum=False),
        lambda o: schedules.OneCycleLR(o, 0.1, STEPS, three_phase=True, anneal_strategy="linear", cycle_momentum=False),
        lambda o: schedules.OneCycleLR(o, 0.1, STEPS, 0.01, div_factor=1e4, cycle_momentum=False),
    ],
}
CASES = [(name, n) for name, makers in MAKERS.items() for n in range(len(makers))]


@pytest.mark.parametrize(("name", "n"), CASES)
def test_schedule_is_silent(name: str, n: int) -> None:
    """Steps, cycles, restarts, warm-ups by steps and by epochs leap, but not beyond all that a warm-up has prepared."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 0.1)
    scheduler = MAKERS[name][n](optimizer)
    rates = []
    for step in range(STEPS):
        rates.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        scheduler.step(*([1.0 + step % 3] if name == "ReduceLROnPlateau" else []))
    assert places(found(RUN_RULES["RunRate"](RUN_RULES["RunRate"].Args()), steps_of(learning_rate=rates))) == []


def test_each_schedule_is_tried() -> None:
    """A schedule that PyTorch adds must be, too. SWALR is a mean of rates that the others have."""
    bases = {"LRScheduler", "_LRScheduler", "SWALR"}
    assert {name for name in schedules.__all__ if name not in bases} == {*MAKERS}
