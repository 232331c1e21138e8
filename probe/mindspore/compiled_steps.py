"""Steps of training in graph mode: MindSpore compiles cells and optimizers whole, so that no hook runs in an update,
and a callback counts the steps instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from probe.core.backend.protocols import StepListener

_optimizers: WeakKeyDictionary[Any, list[Any]] = WeakKeyDictionary()
"""Optimizers whose steps each listener counts."""


_counting = False
"""True while a step is counted that has ended."""


def counting() -> bool:
    """Return whether the update that listeners are called for was compiled."""
    return _counting


def optimizers(listener: StepListener) -> list[Any]:
    """Return the optimizers whose steps ``listener`` counts."""
    return [*_optimizers.get(listener, ())]


def on_step(optimizer: Any, listener: StepListener) -> Callable[[], None]:
    """Listen to the steps that :func:`ended` counts."""
    own = _optimizers.setdefault(listener, [])
    own.append(optimizer)
    return lambda: own.remove(optimizer)


def ended(listener: StepListener) -> None:
    """Count a step, which has been applied, of each optimizer that ``listener`` listens to."""
    global _counting  # noqa: PLW0603 - a fact of the process, for the time of the call
    _counting = True
    try:
        for optimizer in optimizers(listener):
            listener.before(optimizer, None)
            listener.after(optimizer, "applied")
    finally:
        _counting = False
