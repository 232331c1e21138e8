"""Where each kind of optimizer keeps its state, and when it takes a training step.

The first dialect that knows the object in hand is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from probe.core.backend.protocols import Adam, StepListener
from probe.mindspore.optimizers import nn_cell, torch_style

DIALECTS: tuple[Any, ...] = (torch_style, nn_cell)


def _dialect(optimizer: Any) -> Any:
    return next(dialect for dialect in DIALECTS if dialect.knows(optimizer))


def known(optimizer: Any) -> bool:
    """Whether ``optimizer`` can be listened to."""
    return any(dialect.knows(optimizer) for dialect in DIALECTS)


def on_step(optimizer: Any, listener: StepListener) -> Callable[[], None]:
    """Tells ``listener`` of every training step of ``optimizer``; returns what ends that."""
    remove: Callable[[], None] = _dialect(optimizer).on_step(optimizer, listener)
    return remove


def state(optimizer: Any, parameter: Any) -> Mapping[str, Any]:
    """The optimizer's tensors for ``parameter``, by the name that torch gives them."""
    tensors: Mapping[str, Any] = _dialect(optimizer).state(optimizer, parameter)
    return tensors


def adam(optimizer: Any) -> Callable[[Any], Adam | None]:
    """With what ``optimizer`` makes updates of the moments of each parameter."""
    found: Callable[[Any], Adam | None] = _dialect(optimizer).adam(optimizer)
    return found


def state_names(optimizer: Any) -> Mapping[str, str]:
    """For each kind of state the name that the framework gives it."""
    names: Mapping[str, str] = _dialect(optimizer).state_names(optimizer)
    return names


def owned(optimizer: Any) -> list[Any]:
    """The parameters that ``optimizer`` updates."""
    return list(_dialect(optimizer).owned(optimizer))
