"""Loss scale, if it is known: an optimizer that is made with ``loss_scale`` divides gradients by it.

Neither model nor optimizer refers to a ``LossScaler``, or to the scale of a ``TrainOneStepWithLossScaleCell``. Their
methods cannot be replaced, since MindSpore may compile them from their source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

from mindspore import Tensor, dtype

_listened: WeakSet[Any] = WeakSet()
"""Optimizers that have listeners."""


@contextmanager
def listened(optimizer: Any) -> Iterator[None]:
    """Context in which the scale of ``optimizer`` is taken for that of the losses."""
    _listened.add(optimizer)
    try:
        yield
    finally:
        _listened.discard(optimizer)


def found_inf(optimizer: Any) -> None:
    """Return None: each outcome is known on the host."""


def held_scale(optimizer: Any) -> Tensor | None:
    """Return the factor on the gradients with which ``optimizer`` is called; None if it is 1."""
    scale = vars(optimizer).get("loss_scale")
    return Tensor(scale, dtype.float32) if isinstance(scale, float) and scale != 1.0 else None


def loss_scale(parameters: Callable[[], Iterable[Any]] = tuple) -> Tensor | None:
    """Return the factor on the losses of the step in progress, as their gradients reach ``parameters``; None if it is 1
    or unknown."""
    optimizers = [*_listened]
    if len(optimizers) > 1:
        mine = {id(parameter) for parameter in parameters()}
        optimizers = [each for each in optimizers if any(id(one) in mine for one in each.parameters)]
    return next((scale for each in optimizers if (scale := held_scale(each)) is not None), None)
