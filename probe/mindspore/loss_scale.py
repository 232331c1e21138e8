"""The factor on losses, where it can be known: an optimizer that is made with ``loss_scale`` divides gradients by it.

A ``LossScaler``, or the scale of a ``TrainOneStepWithLossScaleCell``, is known to neither model nor optimizer; and
their methods cannot be listened to, since MindSpore compiles them from their source where a script asks for that.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

from mindspore import Tensor, dtype

_listened: WeakSet[Any] = WeakSet()
"""The optimizers that are listened to."""


@contextmanager
def listened(optimizer: Any) -> Iterator[None]:
    """While ``optimizer`` is listened to, its scale is that of the losses."""
    _listened.add(optimizer)
    try:
        yield
    finally:
        _listened.discard(optimizer)


def held_scale(optimizer: Any) -> Tensor | None:
    """The factor that the gradients given to ``optimizer`` carry; None if it is 1."""
    scale = vars(optimizer).get("loss_scale")
    return Tensor(scale, dtype.float32) if isinstance(scale, float) and scale != 1.0 else None


def loss_scale() -> Tensor | None:
    """The factor on the losses of the step in progress."""
    return next((scale for each in _listened if (scale := held_scale(each)) is not None), None)
