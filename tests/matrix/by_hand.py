"""Expected numbers of the toy trainings, computed in float64 NumPy from the formulas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tests.matrix.models import FC2_WEIGHT, FC_BIAS, FC_WEIGHT
from tests.tables import Row

Array = Any
Expected = dict[Row, Array]


class TinyNetByHand:
    """``fc2(max(fc(x), 0))``, trained on the sum of its outputs by gradient descent with momentum."""

    def __init__(self, lr: float, momentum: float) -> None:
        self._lr, self._momentum = lr, momentum
        self.weights = {"fc.weight": FC_WEIGHT.copy(), "fc.bias": FC_BIAS.copy(), "fc2.weight": FC2_WEIGHT.copy()}
        self.buffers: dict[str, Array] = {}

    def micro_batch(self, x: Array) -> tuple[dict[str, Array], dict[str, Array], dict[str, Array]]:
        """Activations, their gradients and the gradients of the weights."""
        h = x @ self.weights["fc.weight"].T + self.weights["fc.bias"]
        r = np.maximum(h, 0)
        y = r @ self.weights["fc2.weight"].T
        dy = np.ones_like(y)
        dr = dy @ self.weights["fc2.weight"]
        dh = dr * (h > 0)
        values = {".input": x, "fc.input": x, "fc.output": h, "relu.input": h, "relu.output": r, "fc2.input": r}
        gradients = {".output": dy, "fc2.output": dy, "fc2.input": dr, "relu.output": dr, "relu.input": dh}
        weights = {"fc.weight": dh.T @ x, "fc.bias": dh.sum(0), "fc2.weight": dy.T @ r}
        return values | {"fc2.output": y, ".output": y}, gradients | {"fc.output": dh}, weights

    def update(self, gradients: dict[str, Array]) -> None:
        """``buffer = momentum * buffer + gradient``, ``weight -= lr * buffer``."""
        for name, gradient in gradients.items():
            self.buffers[name] = self._momentum * self.buffers.get(name, 0) + gradient
            self.weights[name] = self.weights[name] - self._lr * self.buffers[name]

    def step(self, number: int, micro_batches: Sequence[Array], each: bool | str) -> Iterator[tuple[Row, Array]]:
        """Every row of one step; ``each`` is ``monitor_mbs_grad``."""
        yield from _rows("param_origin", number, self.weights)
        yield from _rows("momentum_buffer", number, self.buffers)
        total: dict[str, Array] = {}
        for micro_step, x in enumerate(micro_batches):
            values, gradients, weights = self.micro_batch(x)
            total = {name: gradient + total.get(name, 0) for name, gradient in weights.items()}
            yield from _rows("actv", number, values, micro_step)
            yield from _rows("actv_grad", number, gradients, micro_step)
            if each:
                yield from _rows("grad_unreduced", number, weights if each is True else total, micro_step)
        if not each:
            yield from _rows("grad_unreduced", number, total)
        yield from _rows("grad_reduced", number, total)
        self.update(total)
        yield from _rows("param_updated", number, self.weights)


def _rows(signal: str, step: int, values: dict[str, Array], micro_step: int = 0) -> Iterator[tuple[Row, Array]]:
    for name, value in values.items():
        yield Row(signal, step, name, micro_step), value.copy()


def numbers(values: Array, eps: float = 1e-8) -> dict[str, float]:
    """Ops by their definitions; a complex element counts by its magnitude."""
    x = np.abs(values) if np.iscomplexobj(values) else np.asarray(values)
    x = x.astype(np.float64).ravel()
    with np.errstate(all="ignore"):
        return {
            "min": float(x.min()),
            "max": float(x.max()),
            "mean": float(x.sum() / x.size),
            "norm": float(np.sqrt(np.sum(x * x))),
            "zeros": float(np.mean(np.abs(x) < eps)),
            "nans": float(np.isnan(x).sum()),
            "infs": float(np.isinf(x).sum()),
            "std": float(np.sqrt(np.mean((x - x.mean()) ** 2))),
        }
