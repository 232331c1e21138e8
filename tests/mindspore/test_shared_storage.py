"""Values that are changed in place, and tensors that share their storage: the numbers are those of the moment."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.required import require
from tests.tables import EVERY_SIGNAL, Row, read

os.environ.setdefault("GLOG_v", "4")  # MindSpore logs its warnings to the terminal
ms = require("mindspore")

from probe.mindspore import TrainerMon  # noqa: E402 - only where MindSpore is

Array = Any
Function = Callable[[Any], Any]
X = np.linspace(-2, 2, 16, dtype=np.float32).reshape(4, 4)
WEIGHT = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)
H = X @ WEIGHT.T


class Layer(ms.nn.Cell):  # type: ignore[misc, name-defined]
    """A cell that computes ``function``."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def construct(self, x: Any) -> Any:
        return self.function(x)


class Net(ms.nn.Cell):  # type: ignore[misc, name-defined]
    """A layer, a function in a cell of its own, and what becomes of its output."""

    def __init__(self, inner: Function, after: Function) -> None:
        super().__init__()
        self.fc = ms.nn.Dense(4, 4, has_bias=False, weight_init=ms.Tensor(WEIGHT))
        self.inner, self.after = Layer(inner), after

    def construct(self, x: Any) -> Any:
        return self.after(self.inner(self.fc(x)))


def tripled(y: Any) -> Any:
    return y.mul_(3.0)


def squared(y: Any) -> Any:
    return y * y


CASES: dict[str, tuple[Function, Function, Array, Array, Array]] = {
    "changed afterwards": (lambda x: x * 2, tripled, 2 * H, np.full_like(H, 3), np.full_like(H, 6)),
    "handed through": (lambda x: x, squared, H, 2 * H, 2 * H),
    "a view": (lambda x: x.T, squared, H.T, 2 * H.T, 2 * H),
    "in place": (lambda x: x.mul_(2.0), squared, 2 * H, 4 * H, 8 * H),
    "expanded": (
        lambda x: ms.mint.broadcast_to(x.sum(1, keepdims=True), (4, 4)),
        squared,
        np.repeat(H.sum(1, keepdims=True), 4, 1),
        2 * np.repeat(H.sum(1, keepdims=True), 4, 1),
        8 * np.repeat(H.sum(1, keepdims=True), 4, 1),
    ),
}
"""The function in the cell, what follows, the cell's output, its gradient, and that of the layer's output."""


def trained(case: str, watched: bool) -> tuple[Array, str | None]:
    """The weight after two steps, and where the rows are."""
    net = Net(*CASES[case][:2])
    weights = ms.ParameterTuple([net.fc.weight])
    optimizer = ms.nn.SGD(weights, 0.1)
    differentiated = ms.value_and_grad(lambda x: net(x).sum(), None, weights)
    monitor = TrainerMon(EVERY_SIGNAL | {"ops": ["norm", "mean"], "ndigits": 20})
    if watched:
        monitor.set_monitor(net, 1, optimizer)
    for _ in range(2):
        _, gradients = differentiated(ms.Tensor(X))
        optimizer(gradients)
    monitor.stop()
    assert monitor.faults == {}
    return net.fc.weight.asnumpy().copy(), monitor.output_directory


@pytest.mark.parametrize("case", CASES)
def test_numbers_are_those_of_the_moment(case: str) -> None:
    """Tensors changed afterwards were recorded before; gradients are those of the formula; training is as without."""
    weight, directory = trained(case, watched=True)
    assert np.array_equal(weight, trained(case, watched=False)[0])
    rows = read(directory)
    _, _, output, gradient, before = CASES[case]
    expected = {
        Row("actv", 0, "fc.output"): H,
        Row("actv", 0, "inner.input"): H,
        Row("actv", 0, "inner.output"): output,
        Row("actv_grad", 0, "inner.output"): gradient,
        Row("grad_reduced", 0, "fc.weight"): before.T @ X,
    }
    for row, values in expected.items():
        assert rows[row]["norm"] == pytest.approx(np.linalg.norm(values.astype(np.float64)), rel=1e-5), row
        assert rows[row]["mean"] == pytest.approx(values.astype(np.float64).mean(), rel=1e-4, abs=1e-5), row
