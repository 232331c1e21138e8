"""Operations of a step: counted by torch's counter on a copy without data, and nothing of training is touched."""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import Any

import pytest

from probe.core.naming import MODEL_TFLOPS, STEP_SECONDS
from tests.required import require

torch = require("torch")

from probe.pytorch import TrainerMon  # noqa: E402
from probe.pytorch.flops import counter  # noqa: E402

ROWS, IN, HIDDEN, OUT = 7, 10, 20, 5
BY_HAND = 2 * ROWS * (IN * HIDDEN * 2 + HIDDEN * OUT * 3)
"""Products of a forward and a backward; the first layer's inputs need no gradient."""


def model() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(IN, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, OUT))


def test_products_are_counted_as_by_hand() -> None:
    """A product of matrices takes two operations for each of its products of numbers."""
    watched = model()
    before = {name: each.clone() for name, each in watched.state_dict().items()}
    assert counter(watched, (torch.ones(ROWS, IN),), {})() == BY_HAND
    assert all(torch.equal(each, before[name]) for name, each in watched.state_dict().items())
    assert all(each.grad is None for each in watched.parameters())


def tflops(watched: Any, **run: Any) -> list[float]:
    """The recorded rates times the seconds of their steps."""
    optimizer = torch.optim.SGD(watched.parameters(), 0.1)
    monitor = TrainerMon({"format": "csv", "run": {"enable": True, **run}})
    monitor.set_monitor(watched, 2, optimizer)
    for _ in range(3):
        for _ in range(2):
            watched(torch.ones(ROWS, IN)).sum().backward()
        optimizer.step()
    monitor.stop()
    assert monitor.faults == {}
    (path,) = Path(os.environ["MONITOR_OUTPUT_DIR"]).glob("*/run_0-99.csv")
    with path.open(newline="", encoding="utf-8") as file:
        values = {(int(row["step"]), row["name"]): float(row["value"]) for row in csv.DictReader(file)}
    return [values[n, MODEL_TFLOPS] * values[n, STEP_SECONDS] for n in (1, 2) if (n, MODEL_TFLOPS) in values]


def test_a_step_has_the_operations_of_its_micro_batches() -> None:
    """The rate is that of all micro batches of a step."""
    assert tflops(model()) == pytest.approx([2 * BY_HAND / 1e12] * 2, rel=1e-4)


def test_a_given_number_is_taken() -> None:
    """A configured number is not counted again."""
    assert tflops(model(), flops_per_step=3e12) == pytest.approx([3.0] * 2, rel=1e-4)


def test_a_model_that_needs_its_data_has_no_rate() -> None:
    """A forward that reads a number cannot run without data: there is no rate, and no fault."""

    class Reads(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model()

        def forward(self, x: Any) -> Any:
            return self.inner(x) * float(x.sum())

    assert tflops(Reads()) == []


def test_a_compiled_model_is_left_alone() -> None:
    """No hook is placed where it would be compiled."""
    watched = model()
    compiled = torch.compile(watched, backend="eager")
    assert tflops(compiled) == []
