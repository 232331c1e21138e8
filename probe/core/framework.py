"""All that core asks of a framework: three modules of plain functions, and this page is their contract.

``probe.pytorch`` is one example; mypy holds it to these protocols. Nothing else in core knows a framework.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Tensor = Any
Module = Any
Parameter = Any
Optimizer = Any
Block = Any
"""Moments of one or more tensors, on whatever device they were computed: opaque to core."""
Remove = Callable[[], None]
"""Takes away the hook that the call which returned it has placed. Calling it twice is harmless."""


class Tensors(Protocol):
    """What core asks of tensors."""

    def is_tensor(self, value: object) -> bool:
        """Whether ``value`` holds numbers that can be read now."""

    def describe(self, tensor: Tensor) -> tuple[tuple[int, ...], object]:
        """Shape, and the dtype as an object whose ``str`` is what users read."""

    def identity(self, tensor: Tensor) -> tuple[Hashable, Callable[[], bool]]:
        """A key that two readings share only if they see the same object at the same version, and whether that object
        is still alive (an id may be given again)."""

    def hold(self, tensor: Tensor) -> Tensor | None:
        """A private copy if copying is cheaper than reducing at once (small tensors in host memory), else None."""

    def moments(self, tensors: Sequence[Tensor], columns: Sequence[str], eps: float) -> Block:
        """Moments of non-empty tensors, ``len(tensors) x len(columns)``, without waiting for a device."""

    def to_host(self, blocks: Sequence[Block]) -> Callable[[], npt.NDArray[np.float64]]:
        """Starts one copy of all blocks to host memory; the function returned waits for it and gives the rows."""

    def no_grad(self) -> AbstractContextManager[object]:
        """Inside, nothing is recorded for differentiation."""


class ForwardListener(Protocol):
    """Told of every run of a module's forward that is training data (or its recomputation)."""

    def before(self, module: Module, inputs: object) -> None: ...
    def after(self, module: Module, inputs: object, outputs: object) -> None: ...


class StepListener(Protocol):
    """Told of every training step by :meth:`Hooks.on_step`."""

    def before(self, optimizer: Optimizer, scale: Tensor | None) -> None:
        """Gradients are as they will be applied, up to a factor ``1 / scale``."""

    def after(self, optimizer: Optimizer, outcome: str) -> None:
        """``applied`` or ``skipped``."""


class Hooks(Protocol):
    """What core asks of models and optimizers. Every ``on_...`` returns what takes its hook away."""

    def modules(self, model: Module) -> Iterable[tuple[str, Module]]: ...
    def parameters(self, model: Module) -> Iterable[tuple[str, Parameter]]: ...
    def trainable(self, parameter: Parameter) -> bool: ...
    def gradient(self, parameter: Parameter, main_grad: bool) -> Tensor | None:
        """The gradient held now: ``main_grad`` if asked for and there, else ``grad``."""

    def state(self, optimizer: Optimizer, parameter: Parameter) -> Mapping[str, Tensor]:
        """The optimizer's tensors for ``parameter``, by the framework-neutral name."""


class Groups(Protocol):
    """What core asks of the process group."""

    def rank(self) -> int: ...
    def world_size(self) -> int: ...
    def ranks_of(self, group: object) -> list[int]: ...


class FrameworkAdapter(NamedTuple):
    """A framework, as core sees it."""

    name: str
    version: str
    tensors: Tensors
    hooks: Any
    groups: Groups
    sources: Mapping[str, Any]
    """Signals that only this framework has."""
