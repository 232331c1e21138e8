"""Harness of a framework for the shared tests: parts to build toy models of, and its own way to train them.

A harness is a module of plain functions, like an adapter. To add a framework, write one and add a line to
``FRAMEWORKS``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from probe.core.monitor.trainer_mon import Monitor

Array = npt.NDArray[Any]
Tensor = Any
Module = Any
Parameter = Any
Optimizer = Any


class Loop(Protocol):
    """A training loop in the framework's own idiom. The loss is the sum of the outputs."""

    def micro_batch(self, *args: Tensor, **kwargs: Tensor) -> None:
        """One forward and backward; gradients add up until the update."""

    def update(self) -> None:
        """The optimizers' step."""


class Harness(Protocol):
    """Interface of every harness."""

    NAME: str
    TrainerMon: type[Monitor]
    DTYPES: Mapping[str, object]
    """The framework's dtypes by NumPy's names; ``str`` of one is what tables show."""
    STATE: Mapping[str, Mapping[str, str]]
    """The optimizers there are, and the state that each keeps: the signal, and the framework's own name for it."""
    IDIOMS: Mapping[str, Callable[[Module, Optimizer, Tensor], object]]
    """Other ways to take one training step with the sum of the outputs as loss."""

    def tensor(self, array: Any, dtype: str = "float32") -> Tensor:
        """A constant."""

    def array(self, tensor: Tensor) -> Array:
        """A copy of the elements."""

    def parameter(self, array: Any, dtype: str = "float32") -> Parameter:
        """Something to be trained."""

    def module(self, forward: Callable[..., Any] | None, **members: Module | Parameter) -> Module:
        """A module that runs ``forward`` (None: it only holds) and owns ``members`` by these names."""

    def linear(self, weight: Any, bias: Any = None) -> Module:
        """The framework's own linear layer."""

    def relu(self) -> Module:
        """The framework's own ReLU."""

    def dropout(self) -> Module:
        """A module that draws from the framework's random generator."""

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        """Elementwise, of equal shapes."""

    def multiply(self, a: Tensor, b: Tensor) -> Tensor:
        """Elementwise, of equal shapes."""

    def weights(self, model: Module) -> dict[str, Array]:
        """Copies of the parameters, by name."""

    def optimizer(self, kind: str, *models: Module, **hyperparameters: float) -> Optimizer:
        """``sgd`` (lr), ``momentum`` (lr, momentum) or ``adam`` (lr, beta1, beta2) over all parameters."""

    def loop(self, forward: Callable[..., Tensor], *optimizers: Optimizer) -> Loop:
        """A loop that trains with all ``optimizers`` at once."""

    def evaluate(self, model: Module, *args: Tensor) -> None:
        """A forward as in evaluation."""

    def seed(self) -> None:
        """Sets the framework's random generator to a known state."""

    def generator(self) -> object:
        """State of the framework's random generator, or a number drawn from it."""

    def picture(self, models: Sequence[Module], optimizers: Sequence[Optimizer]) -> dict[str, object]:
        """Everything that a monitor may change and has to put back: hooks, attributes, classes."""


class Framework(NamedTuple):
    """Module and needs of a harness."""

    package: str
    """Package that must be installed."""
    harness: str
    """The module."""
    lacks: frozenset[str] = frozenset()
    """Features that it cannot have by construction: tests that are marked as needing them are left out."""


FRAMEWORKS: dict[str, Framework] = {
    "pytorch": Framework("torch", "tests.matrix.pytorch_harness"),
    "mindspore": Framework("mindspore", "tests.matrix.mindspore_harness", frozenset({"running sums", "any name"})),
    "numpy": Framework(
        "numpy", "tests.matrix.numpy_harness", frozenset({"adam", "sgd", "bfloat16", "idioms", "every step"})
    ),
}


def train_step(loop: Loop, *micro_batches: Tensor) -> None:
    """One training step on one input for each micro batch."""
    for inputs in micro_batches:
        loop.micro_batch(inputs)
    loop.update()


def attributes(objects: Iterable[Any]) -> dict[str, object]:
    """The names of what each object holds, and what classes hold under each name."""
    held: dict[str, object] = {}
    for number, each in enumerate(objects):
        if isinstance(each, type):
            held |= {f"class {each.__qualname__}.{name}": value for name, value in vars(each).items()}
        else:
            held[f"{number}. {type(each).__qualname__}"] = sorted(vars(each))
    return held


def generators(framework: Harness) -> list[object]:
    """The states of all random generators of the process."""
    kind, keys, *rest = np.random.get_state()
    return [framework.generator(), random.getstate(), (kind, np.asarray(keys).tobytes(), *rest)]
