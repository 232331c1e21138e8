"""The contract of an engine: everything that a way of training in parallel does its own way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch.autograd.graph import Node

from probe.core.backend.protocols import Adam, Guard, Remove, Shard, StepListener

Listen = Callable[..., None]
Module = torch.nn.Module
Parameter = torch.nn.Parameter


class Home(Protocol):
    """The place where a wrapper keeps one parameter's numbers."""

    def on_gradient(self, parameter: Parameter, listen: Listen, *, own: bool, main_grad: bool, guard: Guard) -> Remove:
        """As :meth:`probe.core.backend.protocols.Hooks.on_gradient`."""

    def piece(self, parameter: Parameter, tensor: torch.Tensor) -> torch.Tensor | Shard:
        """``tensor``, the parameter itself or something kept in its layout (gradient, optimizer state), with its
        coverage."""

    def leaf(self, parameter: Parameter) -> torch.Tensor | Node | None:
        """The tensor that a backward leads to in place of the parameter, or the node that takes in its gradient."""


class Optimizers(Protocol):
    """The optimizers of an engine: a module of plain functions."""

    def knows(self, optimizer: Any) -> bool:
        """Whether ``optimizer`` is one of them."""

    def owned(self, optimizer: Any) -> list[Parameter]:
        """The parameters that ``optimizer`` updates."""

    def value(self, optimizer: Any, parameter: Parameter) -> torch.Tensor | Shard | None:
        """The part of ``parameter`` that this process holds."""

    def gradient(self, optimizer: Any, parameter: Parameter, main_grad: bool) -> torch.Tensor | Shard | None:
        """The gradient that is held for ``optimizer`` to apply."""

    def state(self, optimizer: Any, parameter: Parameter) -> Mapping[str, torch.Tensor | Shard]:
        """The optimizer's tensors for ``parameter``."""

    def adam(self, optimizer: Any) -> Callable[[Parameter], Adam | None]:
        """The hyperparameters with which ``optimizer`` updates each parameter, if it works as Adam does."""

    def on_step(self, optimizer: Any, listener: StepListener) -> Remove:
        """Calls ``listener`` at every training step of ``optimizer``."""


def _nothing(model: Module) -> None:
    """Refuses no model."""


def _homeless(model: Module) -> Iterator[tuple[Parameter, Any]]:  # noqa: ARG001
    """Takes over no parameter."""
    return iter(())


class Engine(NamedTuple):
    """One way of training in parallel. To add one, write a file or folder with its ``Engine``, and a line in
    :data:`probe.pytorch.engines.table.ENGINES`. An engine is never imported before training imports it: its classes are
    named by qualified names."""

    check: Callable[[Module], None] = _nothing
    """Raises ValueError for a model that cannot be watched."""
    homes: Callable[[Module], Iterator[tuple[Parameter, Any]]] = _homeless
    """The :class:`Home` of each parameter of a model that it has taken over."""
    stand_ins: Callable[[Module], Iterator[tuple[Parameter, Parameter]]] = _homeless
    """Parameters that others stand in for while modules run: the one that stands in, then the one of the model."""
    wraps: Mapping[str, str] = {}
    """Classes that wrap a module of the user's, each with the attribute that holds it."""
    optimizers: Optimizers | None = None
    check_optimizer: Callable[[Any], None] | None = None
    """Raises ValueError for an optimizer of its own whose numbers cannot be read."""
    around: Callable[[Any], Any] | None = None
    """The optimizer that takes the training steps of one that it has wrapped without a trace; else that one."""
    wraps_optimizers: Mapping[str, str] = {}
    """Classes that only pass steps on, each with the attribute that holds the optimizer."""
    pipelined: Callable[[Module], bool] | None = None
    """Whether the forward of a model that begins now is one of its pipeline's schedule."""
    groups: Callable[[], Mapping[str, Sequence[int]]] | None = None
    """The groups of ranks that it knows by name, such as ``tensor_parallel``."""
