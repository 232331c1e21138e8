"""Robust statistics of what a rule remembers, and checks of a memory that is restored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Any

UNREADABLE = (AttributeError, KeyError, OverflowError, TypeError, ValueError)
"""Exceptions of the functions here for a memory that cannot be read."""
LONGEST = 10_000
"""Most names that one rule remembers."""


def median(values: Iterable[float]) -> float:
    """Return the median of at least one number, none of them NaN."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def number(state: Mapping[str, Any], name: str) -> float:
    """Return a finite number of a memory.

    Raises:
        TypeError, ValueError, KeyError: if there is none.
    """
    value = state[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(name)
    if not isfinite(value):
        raise ValueError(name)
    return float(value)


def natural(state: Mapping[str, Any], name: str) -> int:
    """Return an integer of a memory that is not negative.

    Raises:
        TypeError, ValueError, KeyError: if there is none.
    """
    value = number(state, name)
    if value < 0 or value != int(value):
        raise ValueError(name)
    return int(value)


def numbers(state: Mapping[str, Any], name: str) -> list[float]:
    """Return the finite numbers of a memory.

    Raises:
        TypeError, ValueError, KeyError: if there are none.
    """
    return [number({name: value}, name) for value in sequence(state, name)]


def sequence(state: Mapping[str, Any], name: str) -> Sequence[Any]:
    """List of a memory.

    Raises:
        TypeError, KeyError: if there is none.
    """
    values = state[name]
    if not isinstance(values, list | tuple):
        raise TypeError(name)
    return values
