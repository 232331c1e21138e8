"""Parts of models that are left in evaluation mode."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from weakref import WeakKeyDictionary

LEVELS = 2
"""Levels of modules whose mode is looked at, below the first."""
_active: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()


def resting_parts(
    models: Iterable[Any], children: str, is_active: Callable[[Any], bool], is_trained: Callable[[Any], bool]
) -> tuple[str, ...]:
    """Return the names of parts in evaluation mode, to the third level of models in training mode, that have dropout
    or batch statistics, are made of other modules, and are not frozen.

    Args:
        children: attribute of a module that holds its own modules by name.
        is_active: returns whether a part computes otherwise in training; asked once a part.
        is_trained: returns whether a part is not frozen.
    """
    names = list[str]()
    for model in models:
        waiting = [("", model, 0)] if model.training else []
        while waiting:
            prefix, module, level = waiting.pop()
            for name, child in vars(module).get(children, {}).items():
                if child is None or not vars(child).get(children):
                    continue
                if child.training and level < LEVELS:
                    waiting.append((f"{prefix}{name}.", child, level + 1))
                elif not child.training and is_trained(child):
                    if child not in _active:
                        _active[child] = is_active(child)
                    names += [f"{prefix}{name}"] if _active[child] else []
    return tuple(names)
