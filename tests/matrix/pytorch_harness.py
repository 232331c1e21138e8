"""Toy training on PyTorch: ``backward`` adds gradients up, ``step`` uses them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from probe.pytorch import TrainerMon
from tests.matrix.harness import attributes

__all__ = ["TrainerMon"]

NAME = "pytorch"
DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int64": torch.int64,
    "int32": torch.int32,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "bool": torch.bool,
    "complex64": torch.complex64,
    "complex128": torch.complex128,
}
STATE: dict[str, dict[str, str]] = {
    "sgd": {},
    "momentum": {"momentum_buffer": "momentum_buffer"},
    "adam": {"exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"},
}


def tensor(array: Any, dtype: str = "float32") -> torch.Tensor:
    return torch.from_numpy(np.array(array)).to(DTYPES[dtype])


def array(tensor: torch.Tensor) -> np.ndarray:
    values = tensor.detach()
    return (values.float() if values.dtype is torch.bfloat16 else values).numpy().copy()


def parameter(array: Any, dtype: str = "float32") -> torch.nn.Parameter:
    return torch.nn.Parameter(tensor(array, dtype))


class Composed(torch.nn.Module):
    def __init__(self, function: Callable[..., Any], members: dict[str, Any]) -> None:
        super().__init__()
        self.function = function
        for name, member in members.items():
            setattr(self, name, member)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def module(forward: Callable[..., Any] | None, **members: Any) -> torch.nn.Module:
    if forward is not None:
        return Composed(forward, members)
    holder = torch.nn.Module()
    for name, member in members.items():
        setattr(holder, name, member)
    return holder


def linear(weight: Any, bias: Any = None) -> torch.nn.Module:
    outputs, inputs = np.shape(weight)
    layer = torch.nn.Linear(inputs, outputs, bias=bias is not None)
    layer.weight = parameter(weight)
    if bias is not None:
        layer.bias = parameter(bias)
    return layer


def relu() -> torch.nn.Module:
    return torch.nn.ReLU()


def dropout() -> torch.nn.Module:
    return torch.nn.Dropout(0.5)


def add(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a + b


def multiply(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a * b


def weights(model: torch.nn.Module) -> dict[str, np.ndarray]:
    return {name: array(parameter) for name, parameter in model.named_parameters()}


def optimizer(
    kind: str, *models: torch.nn.Module, lr: float, momentum: float = 0.0, beta1: float = 0.9, beta2: float = 0.999
) -> torch.optim.Optimizer:
    parameters = [parameter for model in models for parameter in model.parameters()]
    if kind == "adam":
        return torch.optim.Adam(parameters, lr=lr, betas=(beta1, beta2))
    return torch.optim.SGD(parameters, lr=lr, momentum=momentum)


class Loop:
    def __init__(self, forward: Callable[..., torch.Tensor], optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._forward, self._optimizers = forward, optimizers

    def micro_batch(self, *args: Any, **kwargs: Any) -> None:
        self._forward(*args, **kwargs).float().sum().backward()

    def update(self) -> None:
        for optimizer in self._optimizers:
            optimizer.step()
        for optimizer in self._optimizers:
            optimizer.zero_grad()


def loop(forward: Callable[..., torch.Tensor], *optimizers: torch.optim.Optimizer) -> Loop:
    return Loop(forward, optimizers)


def _step_with_closure(model: torch.nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor) -> None:
    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(inputs).sum()
        loss.backward()
        return loss

    optimizer.step(closure)


IDIOMS = {"closure": _step_with_closure}


def evaluate(model: torch.nn.Module, *args: Any) -> None:
    model.eval()
    with torch.no_grad():
        model(*args)
    model.train()


def seed() -> None:
    torch.manual_seed(7)


def generator() -> bytes:
    return torch.get_rng_state().numpy().tobytes()


def picture(models: Sequence[torch.nn.Module], optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, object]:
    parameters = [parameter for model in models for parameter in model.parameters()]
    objects = [*(module for model in models for module in model.modules()), *parameters, *optimizers]
    classes = (Composed, torch.nn.Module, torch.nn.Parameter, torch.Tensor, torch.optim.Optimizer, torch.optim.SGD)
    return attributes([*objects, *classes, torch.amp.GradScaler]) | {
        "hooks": [
            {key: dict(value) for key, value in vars(each).items() if "hooks" in key and value} for each in objects
        ],
        "hooks of parameters": [(each._backward_hooks, each._post_accumulate_grad_hooks) for each in parameters],
        "step": [getattr(each.step, "__func__", None) for each in optimizers],
    }


def _hooks(owner: object) -> dict[str, object]:
    return {key: dict(value) for key, value in vars(owner).items() if "hooks" in key and value}
