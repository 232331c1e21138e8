"""Homes of parameters that a wrapper has taken over; any other parameter holds its own numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from probe.core.backend.protocols import Shard
from probe.pytorch.engines import fsdp1
from probe.pytorch.engines.engine import Home

_homes: WeakIdKeyDictionary = WeakIdKeyDictionary()


def take_over(parameter: torch.nn.Parameter, home: Home) -> None:
    """Record ``home`` as the home of ``parameter``."""
    _homes[parameter] = home


def home(parameter: torch.nn.Parameter) -> Home | None:
    """Return the home of ``parameter``, if a wrapper has taken it over."""
    return _homes.get(parameter) if _homes.data else None


def wrapped() -> bool:
    """Return whether a wrapper has taken over any parameter."""
    return bool(_homes.data)


def check_again(parameter: torch.nn.Parameter) -> None:
    """Refuse a parameter that was wrapped after attachment in a way that hides it.

    Raises:
        ValueError: with the remedy.
    """
    if getattr(parameter, "_fsdp_flattened", False) and home(parameter) is None:
        fsdp1.check_unwrapped(parameter)


def ready(parameter: torch.nn.Parameter) -> bool:
    """Return whether a hook can be placed at the home of ``parameter``."""
    return bool(getattr(home(parameter), "ready", True))


def absent(parameter: torch.nn.Parameter) -> Shard | None:
    """Return an empty gradient of a parameter of which other ranks have all elements; None for any other parameter."""
    found = getattr(home(parameter), "absent", None)
    return None if found is None else found(parameter)


def piece(parameter: torch.nn.Parameter, tensor: Any) -> Any:
    """Return ``tensor``, which has the layout of ``parameter``, with its coverage; None for None."""
    found = _homes.get(parameter) if _homes.data else None
    if found is None:
        if getattr(parameter, "_fsdp_flattened", False):
            fsdp1.check_unwrapped(parameter)
        return tensor
    return None if tensor is None else found.piece(parameter, tensor)
