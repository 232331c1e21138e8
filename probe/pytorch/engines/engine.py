"""Contract of an engine: everything that differs between ways of training in parallel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch.autograd.graph import Node

from probe.core.backend.optimizer_kinds import OptimizerKind
from probe.core.backend.protocols import Guard, Remove, Shard

Listen = Callable[..., None]
Module = torch.nn.Module
Parameter = torch.nn.Parameter


class Home(Protocol):
    """Place where a wrapper keeps one parameter's numbers."""

    def on_gradient(self, parameter: Parameter, listen: Listen, *, own: bool, main_grad: bool, guard: Guard) -> Remove:
        """Listen as :meth:`probe.core.backend.protocols.Hooks.on_gradient` does."""

    def piece(self, parameter: Parameter, tensor: torch.Tensor) -> torch.Tensor | Shard:
        """Return ``tensor``, the parameter or a tensor in its layout (gradient, optimizer state), with its coverage."""

    def leaf(self, parameter: Parameter) -> torch.Tensor | Node | None:
        """Return the tensor to which a backward leads in place of the parameter, or the node that receives its
        gradient."""


class Optimizers(OptimizerKind, Protocol):
    """Optimizers of an engine: a module of plain functions."""

    def value(self, optimizer: Any, parameter: Parameter) -> torch.Tensor | Shard | None:
        """Return the part of ``parameter`` that this process holds."""

    def gradient(self, optimizer: Any, parameter: Parameter, main_grad: bool) -> torch.Tensor | Shard | None:
        """Return the gradient that ``optimizer`` will apply."""


def _nothing(model: Module) -> None:
    """Accept every model."""


def _no_homes(model: Module) -> Iterator[tuple[Parameter, Any]]:  # noqa: ARG001
    """Take over no parameter."""
    return iter(())


class Engine(NamedTuple):
    """Way of training in parallel. To add one, write a file or folder with its ``Engine``, and a line in
    :data:`probe.pytorch.engines.table.ENGINES`. Refer to its classes by qualified names: only training imports them."""

    check: Callable[[Module], None] = _nothing
    """Function that raises ValueError for a model that cannot be watched."""
    homes: Callable[[Module], Iterator[tuple[Parameter, Any]]] = _no_homes
    """Parameters of a model that the engine has taken over, each with its :class:`Home`."""
    stand_ins: Callable[[Module], Iterator[tuple[Parameter, Parameter]]] = _no_homes
    """Stand-ins of parameters while modules run, each with the parameter of the model."""
    wraps: Mapping[str, str] = {}
    """Classes that wrap a module of the user, each with the attribute that holds the module."""
    optimizers: Optimizers | None = None
    check_optimizer: Callable[[Any], None] | None = None
    """Function that raises ValueError for an optimizer of this engine whose numbers cannot be read."""
    around: Callable[[Any], Any] | None = None
    """Function from an optimizer to the one that wraps it, without a reference back, and takes its training steps; else
    to the same optimizer."""
    wraps_optimizers: Mapping[str, str] = {}
    """Classes that only forward steps, each with the attribute that holds the optimizer."""
    pipelined: Callable[[Module], bool] | None = None
    """Function that returns True if the forward of a model that begins now belongs to a pipeline's schedule."""
    groups: Callable[[], Mapping[str, Sequence[int]]] | None = None
    """Groups of this rank that the engine knows by name, such as ``tensor_parallel``."""
