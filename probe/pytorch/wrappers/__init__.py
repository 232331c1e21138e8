"""What wraps a model for parallel training, and where it keeps what the model's parameters stand for.

A parameter that a wrapper has taken over has a *home*, found by walking the model; any other is at home with itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Protocol

import torch
from torch.utils.weak import WeakIdKeyDictionary

from probe.core.framework import Guard, Remove, Shard

Listen = Callable[..., None]


class Home(Protocol):
    """Where a wrapper keeps one parameter's numbers."""

    def on_gradient(
        self, parameter: torch.nn.Parameter, listen: Listen, *, own: bool, main_grad: bool, guard: Guard
    ) -> Remove:
        """As :meth:`probe.core.framework.Hooks.on_gradient`."""

    def piece(self, parameter: torch.nn.Parameter, tensor: torch.Tensor) -> torch.Tensor | Shard:
        """``tensor``, the parameter itself or something kept in its layout (gradient, optimizer state), with what it
        covers."""

    def leaf(self, parameter: torch.nn.Parameter) -> torch.Tensor | None:
        """The tensor that a backward leads to in place of the parameter."""


DIALECTS: tuple[ModuleType, ...] = ()
"""Each has ``check(model)``, which raises ValueError for what cannot be watched, and ``homes(model)``."""

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


def _found(model: torch.nn.Module) -> Iterator[tuple[torch.nn.Parameter, Home]]:
    for dialect in DIALECTS:
        yield from dialect.homes(model)


def home(parameter: torch.nn.Parameter) -> Home | None:
    """Where ``parameter`` is kept, if a wrapper has taken it over."""
    return _homes.get(parameter) if _homes else None


def piece(parameter: torch.nn.Parameter, tensor: Any) -> Any:
    """``tensor``, kept in the layout of ``parameter``, with what it covers; None stays None."""
    found = home(parameter)
    return tensor if found is None or tensor is None else found.piece(parameter, tensor)
