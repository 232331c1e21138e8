"""What wraps a model for parallel training, and where it keeps what the model's parameters stand for.

A parameter that a wrapper has taken over has a *home*, found by walking the model; any other is at home with itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Protocol

import torch
from torch.autograd.graph import Node
from torch.utils.weak import WeakIdKeyDictionary

from probe.core.backend.protocols import Guard, Remove, Shard
from probe.pytorch.engines import fsdp1, fsdp2, pipelining
from probe.pytorch.engines.deepspeed import gradients
from probe.pytorch.engines.megatron import model as megatron

Listen = Callable[..., None]


class Home(Protocol):
    """Where a wrapper keeps one parameter's numbers."""

    def on_gradient(
        self, parameter: torch.nn.Parameter, listen: Listen, *, own: bool, main_grad: bool, guard: Guard
    ) -> Remove:
        """As :meth:`probe.core.backend.protocols.Hooks.on_gradient`."""

    def piece(self, parameter: torch.nn.Parameter, tensor: torch.Tensor) -> torch.Tensor | Shard:
        """``tensor``, the parameter itself or something kept in its layout (gradient, optimizer state), with what it
        covers."""

    def leaf(self, parameter: torch.nn.Parameter) -> torch.Tensor | Node | None:
        """The tensor that a backward leads to in place of the parameter, or the node that takes in its gradient."""


DIALECTS: tuple[ModuleType, ...] = (fsdp1, fsdp2, megatron, gradients)
"""Each has ``check(model)``, which raises ValueError for what cannot be watched, and ``homes(model)``."""

PIPELINES: tuple[Callable[[torch.nn.Module], bool], ...] = (megatron.pipelined, pipelining.pipelined)
"""Each knows one kind of pipeline: see :func:`pipelined`."""

_homes: WeakIdKeyDictionary = WeakIdKeyDictionary()


def check(model: torch.nn.Module) -> None:
    """Refuses what cannot be watched.

    Raises:
        ValueError: saying what was expected, what came and what to do.
    """
    for dialect in DIALECTS:
        dialect.check(model)


def look_at(model: torch.nn.Module) -> None:
    """Finds out where the parameters of ``model`` are at home."""
    for parameter, home in _found(model):
        _homes[parameter] = home


def stand_ins(model: torch.nn.Module) -> dict[int, torch.nn.Parameter]:
    """The parameters that others stand in for while modules run, by the identity of those."""
    return {id(stand_in): parameter for stand_in, parameter in fsdp2.stand_ins(model)}


def check_again(parameter: torch.nn.Parameter) -> None:
    """Refuses what has been wrapped, since it was first looked at, in a way that hides it.

    Raises:
        ValueError: saying what to do.
    """
    if home(parameter) is None:
        fsdp1.check_unwrapped(parameter)


def ready(parameter: torch.nn.Parameter) -> bool:
    """Whether a hook can be placed where ``parameter`` is at home."""
    return bool(getattr(home(parameter), "ready", True))


def absent(parameter: torch.nn.Parameter) -> Shard | None:
    """The gradient, without elements, of a parameter of which other ranks have all elements; None for any other."""
    found = getattr(home(parameter), "absent", None)
    return None if found is None else found(parameter)


def _found(model: torch.nn.Module) -> Iterator[tuple[torch.nn.Parameter, Home]]:
    for dialect in DIALECTS:
        yield from dialect.homes(model)


def pipelined(model: torch.nn.Module) -> bool:
    """Whether the forward of ``model`` that begins now is one of a pipeline's schedule."""
    return any(knows(model) for knows in PIPELINES)


def home(parameter: torch.nn.Parameter) -> Home | None:
    """Where ``parameter`` is kept, if a wrapper has taken it over."""
    return _homes.get(parameter) if _homes else None


def piece(parameter: torch.nn.Parameter, tensor: Any) -> Any:
    """``tensor``, kept in the layout of ``parameter``, with what it covers; None stays None."""
    found = home(parameter)
    if found is None:
        fsdp1.check_unwrapped(parameter)
    return tensor if found is None or tensor is None else found.piece(parameter, tensor)
