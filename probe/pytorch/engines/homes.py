"""Homes of parameters that a wrapper has taken over; any other parameter holds its own numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from probe.core.backend.protocols import Shard
from probe.pytorch.engines import fsdp1
from probe.pytorch.engines.engine import Home

_homes: WeakIdKeyDictionary = WeakIdKeyDictionary()
HOMES: dict[Any, Home] = _homes.data
"""All homes; empty if no wrapper has taken over any parameter."""
_hidden: WeakIdKeyDictionary = WeakIdKeyDictionary()
HIDDEN: dict[Any, bool] = _hidden.data
"""Parameters that were wrapped after attachment in a way that hides them, as the latest searches have found them."""


def take_over(parameter: torch.nn.Parameter, home: Home) -> None:
    """Record ``home`` as the home of ``parameter``."""
    _homes[parameter] = home


def home(parameter: torch.nn.Parameter) -> Home | None:
    """Return the home of ``parameter``, if a wrapper has taken it over."""
    return _homes.get(parameter) if HOMES else None


def hidden(parameters: Iterable[torch.nn.Parameter | None]) -> int:
    """Return the number of those that were wrapped after attachment in a way that hides them, and note them."""
    number = 0
    for parameter in parameters:
        if parameter is not None and fsdp1.is_flat(parameter) and home(parameter) is None:
            _hidden[parameter] = True
            number += 1
    return number


def check_again(parameter: torch.nn.Parameter) -> None:
    """Refuse a parameter that is hidden.

    Raises:
        ValueError: with the remedy.
    """
    if home(parameter) is None:
        fsdp1.check_unwrapped(parameter)


def ready(parameter: torch.nn.Parameter) -> bool:
    """Return whether a hook can be placed at the home of ``parameter``."""
    return bool(getattr(home(parameter), "ready", True))


def absent(parameter: torch.nn.Parameter) -> Shard | None:
    """Return an empty gradient of a parameter of which other ranks have all elements; None for any other parameter."""
    check = getattr(home(parameter), "absent", None)
    return None if check is None else check(parameter)


def piece(parameter: torch.nn.Parameter, tensor: Any) -> Any:
    """Return ``tensor``, which has the layout of ``parameter``, with its coverage; None for None."""
    if not (HOMES or HIDDEN):
        return tensor
    engine = home(parameter)
    if engine is None:
        fsdp1.check_unwrapped(parameter)
        return tensor
    return None if tensor is None else engine.piece(parameter, tensor)
