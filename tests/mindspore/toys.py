"""Small cells for the tests, the loops that train them, and the rows that come of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("GLOG_v", "4")  # MindSpore logs its warnings to the terminal

from tests.required import require

ms = require("mindspore")
nn = ms.nn

from probe.mindspore import TrainerMon  # noqa: E402 - only where MindSpore is
from probe.mindspore.autograd import HAS_IDENTITIES  # noqa: E402
from tests.tables import EVERY_SIGNAL, Rows, read  # noqa: E402

with_input_gradients = pytest.mark.skipif(not HAS_IDENTITIES, reason="MindSpore records these from 2.9 on")
X = np.array([[1.0, 1.0], [0.0, -1.0]], np.float32)
"""Input of :class:`TinyNet`; micro batch ``a`` is ``X * (a + 1)``."""


class TinyNet(nn.Cell):
    """Two dense layers around a ReLU, with weights that can be followed on paper."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Dense(2, 3)
        self.relu = nn.ReLU()
        self.fc2 = nn.Dense(3, 1, has_bias=False)
        self.fc.weight.set_data(tensor([[1, 2], [3, 4], [-1, -2]]))
        self.fc.bias.set_data(tensor([0.5, -0.5, 0]))
        self.fc2.weight.set_data(tensor([[1, -1, 2]]))

    def construct(self, x: Any) -> Any:
        return self.fc2(self.relu(self.fc(x)))


class Deep(nn.Cell):
    """A layer, an inner sequence and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Dense(2, 4)
        self.body = nn.SequentialCell(nn.Dense(4, 4), nn.ReLU(), nn.Dense(4, 4))
        self.head = nn.Dense(4, 1)
        random = np.random.default_rng(0)
        for parameter in self.trainable_params():
            parameter.set_data(tensor(random.normal(size=parameter.shape)))

    def construct(self, x: Any) -> Any:
        return self.head(self.body(self.stem(x)))


def tensor(values: Any) -> Any:
    """A float32 tensor."""
    return ms.Tensor(np.asarray(values, np.float32))


def gradients(model: Any, inputs: Any = X) -> tuple[Any, ...]:
    """The gradients of the sum of the outputs."""
    _, grads = ms.value_and_grad(lambda x: model(x).sum(), None, model.trainable_params())(tensor(inputs))
    return tuple(grads)


def one_step(model: Any, optimizer: Any, micro_batches: int = 1) -> None:
    """One training step; several micro batches are added up as MindSpore users do it."""
    if micro_batches == 1:
        optimizer(gradients(model))
        return
    sums = [ms.Parameter(ms.ops.zeros_like(p), name=f"sum.{p.name}") for p in model.trainable_params()]
    for number in range(micro_batches):
        for held, gradient in zip(sums, gradients(model, X * (number + 1)), strict=True):
            ms.ops.assign_add(held, gradient)
    optimizer(tuple(sums))


def watch(model: Any, optimizer: Any, **settings: Any) -> Any:
    """A monitor attached to ``model``; all signals are on unless ``settings`` has others."""
    monitor = TrainerMon({**EVERY_SIGNAL, "ops": ["min", "max", "mean", "norm", "nans"], "ndigits": 20, **settings})
    monitor.set_monitor(model, 1, optimizer)
    return monitor


def rows_of(monitor: Any) -> Rows:
    """Everything a monitor wrote, after stopping it; any fault fails."""
    monitor.stop()
    assert monitor.faults == {}
    return read(Path(monitor.output_directory))


def weights(model: Any) -> list[bytes]:
    """Every bit of the parameters."""
    return [parameter.asnumpy().tobytes() for parameter in model.trainable_params()]


def hooks(model: Any, *optimizers: Any) -> int:
    """How many hooks are on the cells, parameters and optimizers."""
    cells = [cell for _, cell in model.cells_and_names()] + list(optimizers)
    held: Callable[[Any], int] = lambda cell: len(cell._forward_pre_hook) + len(cell._forward_hook)  # noqa: E731
    return sum(map(held, cells)) + sum(len(parameter.hooks()) for parameter in model.get_parameters())
