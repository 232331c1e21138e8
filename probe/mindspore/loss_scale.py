"""Loss scale, if it is known: an optimizer that is made with ``loss_scale`` divides gradients by it.

Neither model nor optimizer refers to a ``LossScaler``, or to the scale of a ``TrainOneStepWithLossScaleCell``. Their
methods cannot be replaced, since MindSpore may compile them from their source. A function that is differentiated refers
to the ``LossScaler`` that it uses.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

from mindspore import Tensor, amp, dtype, nn

from probe.mindspore.tensors import number

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


DEPTH = 2
"""Functions that call each other, in which a scaler is looked for."""


def scale_within(function: Any) -> Tensor | None:
    """Return the factor by which a function that is differentiated multiplies its loss: that of the only ``LossScaler``
    whose ``scale`` it names, or a function that it refers to. None if it is 1, or there is none, or are several."""
    scalers = {id(scaler): scaler for scaler in _scalers(function, DEPTH)}
    if len(scalers) != 1:
        return None
    factor = getattr(next(iter(scalers.values())), "scale_value", None)
    return factor if isinstance(factor, Tensor) and number(factor) != 1.0 else None


def _scalers(function: Any, depth: int) -> Iterator[amp.LossScaler]:
    """Yield the scalers to which the code of ``function`` refers; nothing of it is run."""
    if isinstance(function, functools.partial):
        function = function.func
    owner = getattr(function, "__self__", None)
    if isinstance(function, nn.Cell):
        owner, function = function, type(function).construct
    code = getattr(function := getattr(function, "__func__", function), "__code__", None)
    if not isinstance(code, types.CodeType):
        return
    for value in _references(function, code, owner):
        if isinstance(value, amp.LossScaler):
            if "scale" in code.co_names:
                yield value
        elif depth and isinstance(value, types.FunctionType | types.MethodType):
            yield from _scalers(value, depth - 1)


def _references(function: Any, code: types.CodeType, owner: Any) -> Iterator[object]:
    """Yield what the names in ``code`` stand for: variables of enclosing functions, globals, attributes of ``self``."""
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    attributes = getattr(owner, "__dict__", {})
    for name in code.co_names:
        yield attributes.get(name)
        yield function.__globals__.get(name)
