"""Toy training on the toy framework: its layers, and gradients that add up until a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.matrix.harness import attributes
from tests.matrix.numpy_framework import SGD, Module, Tensor, TrainerMon

__all__ = ["TrainerMon"]

NAME = "numpy"
FLOATS = ("float64", "float32", "float16")
DTYPES = {
    name: np.dtype(name) for name in (*FLOATS, "int64", "int32", "int8", "uint8", "bool", "complex64", "complex128")
}
STATE = {"momentum": {"momentum_buffer": "momentum_buffer"}}
IDIOMS: dict[str, Any] = {}

_random = np.random.RandomState()


def tensor(array: Any, dtype: str = "float32") -> Tensor:
    return Tensor(np.array(array).astype(dtype))


def array(tensor: Tensor) -> np.ndarray:
    return tensor.data.copy()


def parameter(array: Any, dtype: str = "float32") -> Tensor:
    return Tensor(np.array(array).astype(dtype), parameter=True)


def module(forward: Callable[..., Any] | None, **members: Any) -> Module:
    return Module(forward, **members)


def linear(weight: Any, bias: Any = None) -> Module:
    w, b = parameter(weight), parameter(0.0 if bias is None else bias)

    def forward(x: Tensor) -> Tensor:
        return Tensor(
            x.data @ w.data.T + b.data,
            (x, lambda gradient: gradient @ w.data),
            (w, lambda gradient: gradient.T @ x.data),
            *([(b, lambda gradient: gradient.sum(0))] if bias is not None else []),
        )

    return Module(forward, weight=w, **({} if bias is None else {"bias": b}))


def relu() -> Module:
    return Module(lambda x: Tensor(np.maximum(x.data, 0), (x, lambda gradient: gradient * (x.data > 0))))


def dropout() -> Module:
    def forward(x: Tensor) -> Tensor:
        kept = (_random.random_sample(x.data.shape) > 0.5) * np.float32(2)
        return Tensor(x.data * kept, (x, lambda gradient: gradient * kept))

    return Module(forward)


def add(a: Tensor, b: Tensor) -> Tensor:
    return Tensor(a.data + b.data, (a, lambda gradient: gradient), (b, lambda gradient: gradient))


def multiply(a: Tensor, b: Tensor) -> Tensor:
    return Tensor(a.data * b.data, (a, lambda gradient: gradient * b.data), (b, lambda gradient: gradient * a.data))


def weights(model: Module) -> dict[str, np.ndarray]:
    return {name: array(parameter) for name, parameter in model.named(Tensor)}


def optimizer(kind: str, *models: Module, lr: float, momentum: float = 0.0) -> SGD:
    return SGD([parameter for model in models for _, parameter in model.named(Tensor)], lr, momentum)


class Loop:
    def __init__(self, forward: Callable[..., Tensor], optimizers: Sequence[SGD]) -> None:
        self._forward, self._optimizers = forward, optimizers

    def micro_batch(self, *args: Any, **kwargs: Any) -> None:
        outputs = self._forward(*args, **kwargs)
        loss = Tensor(outputs.data.sum(), (outputs, lambda gradient: np.broadcast_to(gradient, outputs.data.shape)))
        loss.backward()

    def update(self) -> None:
        for optimizer in self._optimizers:
            optimizer.step()


def loop(forward: Callable[..., Tensor], *optimizers: SGD) -> Loop:
    return Loop(forward, optimizers)


def evaluate(model: Module, *args: Any) -> None:
    model.training = False
    model(*args)
    model.training = True


def seed() -> None:
    _random.seed(7)


def generator() -> object:
    _, keys, *position = _random.get_state()
    return keys.tobytes(), position


def picture(models: Sequence[Module], optimizers: Sequence[SGD]) -> dict[str, object]:
    modules = [each for model in models for each in (model, *(inner for _, inner in model.named(Module)))]
    parameters = [parameter for model in models for _, parameter in model.named(Tensor)]
    listeners = [each.listeners for each in (*parameters, *optimizers)]
    listeners += [each for module in modules for each in (module.before, module.after)]
    return attributes([*modules, *parameters, *optimizers, Module, SGD]) | {"hooks": [list(each) for each in listeners]}
