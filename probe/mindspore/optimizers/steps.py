"""Where each kind of optimizer keeps its state, and when it takes a training step.

The first kind that knows the object in hand is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from probe.core.backend.protocols import Adam, Remove, StepListener
from probe.mindspore.optimizers.contract import Optimizers
from probe.mindspore.optimizers.table import OPTIMIZERS


def _kind(optimizer: Any) -> Optimizers:
    return next(kind for kind in OPTIMIZERS.values() if kind.knows(optimizer))


def known(optimizer: Any) -> bool:
    """Whether ``optimizer`` can be listened to."""
    return any(kind.knows(optimizer) for kind in OPTIMIZERS.values())


def on_step(optimizer: Any, listener: StepListener) -> Remove:
    """Calls ``listener`` at every training step of ``optimizer``."""
    return _kind(optimizer).on_step(optimizer, listener)


def state(optimizer: Any, parameter: Any) -> Mapping[str, Any]:
    """The optimizer's tensors for ``parameter``, by torch's names."""
    return _kind(optimizer).state(optimizer, parameter)


def adam(optimizer: Any) -> Callable[[Any], Adam | None]:
    """The hyperparameters with which ``optimizer`` updates each parameter, if it works as Adam does."""
    return _kind(optimizer).adam(optimizer)


def state_names(optimizer: Any) -> Mapping[str, str]:
    """MindSpore's name for each kind of state, where it differs."""
    return _kind(optimizer).state_names(optimizer)


def owned(optimizer: Any) -> list[Any]:
    """The parameters that ``optimizer`` updates."""
    return list(_kind(optimizer).owned(optimizer))
