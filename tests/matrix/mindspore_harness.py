"""Toy training on MindSpore in PyNative mode: functions return gradients, optimizers are called with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mindspore
import numpy as np
from mindspore import nn, ops

from probe.mindspore import TrainerMon
from probe.mindspore.private_api import executor
from tests.matrix.harness import attributes

__all__ = ["TrainerMon"]

NAME = "mindspore"
DTYPES = {
    "float64": mindspore.float64,
    "float32": mindspore.float32,
    "float16": mindspore.float16,
    "bfloat16": mindspore.bfloat16,
    "int64": mindspore.int64,
    "int32": mindspore.int32,
    "int8": mindspore.int8,
    "uint8": mindspore.uint8,
    "bool": mindspore.bool_,
    "complex64": mindspore.complex64,
    "complex128": mindspore.complex128,
}
STATE: dict[str, dict[str, str]] = {
    "sgd": {},
    "momentum": {"momentum_buffer": "moments"},
    "adam": {"exp_avg": "moment1", "exp_avg_sq": "moment2"},
}


def tensor(array: Any, dtype: str = "float32") -> mindspore.Tensor:
    values = np.array(array)
    if dtype == "bfloat16":
        return mindspore.Tensor(values.astype(np.float32)).astype(mindspore.bfloat16)
    return mindspore.Tensor(values.astype(dtype))


def array(tensor: mindspore.Tensor) -> np.ndarray:
    values = tensor.astype(mindspore.float32) if tensor.dtype == mindspore.bfloat16 else tensor
    return values.asnumpy().copy()


def parameter(array: Any, dtype: str = "float32") -> mindspore.Parameter:
    return mindspore.Parameter(tensor(array, dtype))


class Composed(nn.Cell):
    def __init__(self, function: Callable[..., Any], members: dict[str, Any]) -> None:
        super().__init__()
        self.function = function
        for name, member in members.items():
            setattr(self, name, member)

    def construct(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def module(forward: Callable[..., Any] | None, **members: Any) -> nn.Cell:
    if forward is not None:
        return Composed(forward, members)
    holder = nn.Cell()
    for name, member in members.items():
        setattr(holder, name, member)
    return holder


def linear(weight: Any, bias: Any = None) -> nn.Cell:
    outputs, inputs = np.shape(weight)
    start = {} if bias is None else {"bias_init": tensor(bias)}
    return nn.Dense(inputs, outputs, weight_init=tensor(weight), has_bias=bias is not None, **start)


def relu() -> nn.Cell:
    return nn.ReLU()


def dropout() -> nn.Cell:
    # nn.Dropout on CPU draws other numbers each time, whatever the seed.
    return module(lambda x: x * ops.rand(*x.shape).greater(0.5).astype(mindspore.float32) * 2)


def add(a: mindspore.Tensor, b: mindspore.Tensor) -> mindspore.Tensor:
    return a + b


def multiply(a: mindspore.Tensor, b: mindspore.Tensor) -> mindspore.Tensor:
    return a * b


def weights(model: nn.Cell) -> dict[str, np.ndarray]:
    return {name: array(parameter) for name, parameter in model.parameters_and_names()}


def optimizer(
    kind: str, *models: nn.Cell, lr: float, momentum: float = 0.0, beta1: float = 0.9, beta2: float = 0.999
) -> nn.Optimizer:
    for number, model in enumerate(models if len(models) > 1 else ()):
        model.update_parameters_name(f"model{number}.")  # within an optimizer names must differ
    parameters = [parameter for model in models for parameter in model.trainable_params()]
    if kind == "adam":
        return nn.Adam(parameters, learning_rate=lr, beta1=beta1, beta2=beta2)
    if kind == "sgd":
        return nn.SGD(parameters, lr)
    needs_own = any(parameter.dtype == mindspore.bfloat16 for parameter in parameters)
    return (MomentumOfAnyDtype if needs_own else nn.Momentum)(parameters, lr, momentum)


class MomentumOfAnyDtype(nn.Momentum):
    """No optimizer of MindSpore 2.10, nor ``assign``, has a kernel for bfloat16 on CPU."""

    def construct(self, gradients: Sequence[mindspore.Tensor]) -> None:
        lr, momentum = float(self.get_lr()), float(self.momentum)
        for parameter, moment, gradient in zip(self.parameters, self.moments, gradients, strict=True):
            moment.set_data(moment * momentum + gradient)
            parameter.set_data(parameter - moment * lr)


class Loop:
    def __init__(self, forward: Callable[..., mindspore.Tensor], optimizers: Sequence[nn.Optimizer]) -> None:
        self._optimizers = optimizers
        parameters = [parameter for optimizer in optimizers for parameter in optimizer.parameters]
        self._differentiated = mindspore.value_and_grad(
            lambda *args, **kwargs: _loss(forward(*args, **kwargs)), None, mindspore.ParameterTuple(parameters)
        )
        self._gradients: list[Any] = []

    def micro_batch(self, *args: Any, **kwargs: Any) -> None:
        try:
            _, gradients = self._differentiated(*args, **kwargs)
        except BaseException:
            executor.clear_res()  # else MindSpore 2.10 takes every forward from now on for one to be differentiated
            raise
        if not self._gradients:
            self._gradients = list(gradients)
            return
        if not isinstance(self._gradients[0], mindspore.Parameter):
            self._gradients = [mindspore.Parameter(first) for first in self._gradients]
        for total, gradient in zip(self._gradients, gradients, strict=True):
            ops.assign_add(total, gradient)

    def update(self) -> None:
        for optimizer in self._optimizers:
            own = len(optimizer.parameters)
            optimizer(tuple(self._gradients[:own]))
            del self._gradients[:own]


def _loss(outputs: mindspore.Tensor) -> mindspore.Tensor:
    return outputs.astype(mindspore.float32).sum()


def loop(forward: Callable[..., mindspore.Tensor], *optimizers: nn.Optimizer) -> Loop:
    return Loop(forward, optimizers)


def _train_one_step_cell(model: nn.Cell, optimizer: nn.Optimizer, inputs: mindspore.Tensor) -> None:
    nn.TrainOneStepCell(module(lambda x: _loss(model(x)), model=model), optimizer).set_train()(inputs)


IDIOMS = {"TrainOneStepCell": _train_one_step_cell}


def evaluate(model: nn.Cell, *args: Any) -> None:
    model(*args)


def seed() -> None:
    mindspore.set_seed(7)


def generator() -> object:
    # On CPU an operator keeps a state of its own, which shows only in what it draws.
    return mindspore.get_rng_state().asnumpy().tobytes(), ops.rand(16).asnumpy().tobytes()


def picture(models: Sequence[nn.Cell], optimizers: Sequence[nn.Optimizer]) -> dict[str, object]:
    cells = [each for model in (*models, *optimizers) for _, each in model.cells_and_names()]
    parameters = [parameter for model in models for parameter in model.get_parameters()]
    classes = [Composed, nn.Cell, mindspore.Parameter, mindspore.Tensor, nn.DistributedGradReducer, nn.Optimizer]
    found = attributes([*cells, *parameters, *classes, *map(type, optimizers)])
    del found["class Cell.total_instance_count"]  # of cells alive: garbage counts until it is collected
    return found | {
        "hooks": [_hooks(each) for each in cells],
        "hooks of parameters": [list(each.hooks()) for each in parameters],
    }


def _hooks(cell: nn.Cell) -> dict[str, object]:
    return {key: dict(value) for key, value in vars(cell).items() if "hook" in key and value}
