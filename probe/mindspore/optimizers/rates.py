"""Learning rates of MindSpore's optimizers at the update that is about to begin, where the host knows them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import mindspore
from mindspore import nn

from probe.mindspore import tensors

_latest: WeakKeyDictionary[nn.Cell, tuple[float, float]] = WeakKeyDictionary()
"""Step and number of each schedule, whose operators take a millisecond: all parameters of a group have the same one."""


def rates(optimizer: Any) -> tuple[float, ...]:
    """Return the learning rate of each group, or of each parameter where MindSpore keeps it so; NaN where only a device
    knows it, or a schedule of the program's own would have to be called."""
    rate = getattr(optimizer, "learning_rate", None)
    if rate is None:  # optimizers with groups of parameters as torch has them
        return tuple(on_host(optimizer, group.get("lr")) for group in getattr(optimizer, "param_groups", ()))
    several = rate if _is_list(rate) else [rate]
    return tuple(on_host(optimizer, each) for each in several)


def groups(optimizer: Any) -> tuple[int, ...]:
    """Return the position of each parameter's rate among those of :func:`rates`; empty if it is not known."""
    rate = getattr(optimizer, "learning_rate", None)
    if rate is None:
        numbered = enumerate(getattr(optimizer, "param_groups", ()))
        return tuple(number for number, group in numbered for _ in group["params"])
    parameters = len(optimizer.parameters)
    if not _is_list(rate):
        return (0,) * parameters
    return tuple(range(parameters)) if len(rate) == parameters else ()


def _is_list(rate: object) -> bool:
    return isinstance(rate, Sequence | nn.CellList) and not isinstance(rate, str)


def on_host(optimizer: Any, value: Any) -> float:
    """Return a number of the options of ``optimizer``; NaN if the host does not know it."""
    if isinstance(value, nn.Cell):
        return _scheduled(optimizer, value)
    if isinstance(value, mindspore.Tensor):
        number = tensors.number(value) if value.size == 1 else None
        return math.nan if number is None else number
    return float(value) if isinstance(value, int | float) else math.nan


def _scheduled(optimizer: Any, schedule: nn.Cell) -> float:
    """Return the rate of a schedule of MindSpore's own; a list of rates is read without an operator."""
    step = tensors.number(optimizer.global_step)
    if step is None:
        return math.nan
    listed = getattr(schedule, "learning_rate", None)
    if type(schedule).__name__ == "_IteratorLearningRate" and isinstance(listed, mindspore.Tensor):
        values = tensors.numbers(listed) if tensors.on_host(listed) else ()
        return float(values[min(int(step), len(values) - 1)]) if len(values) else math.nan
    if not type(schedule).__module__.startswith("mindspore."):
        return math.nan
    known = _latest.get(schedule)
    if known is None or known[0] != step:
        known = _latest[schedule] = step, on_host(optimizer, schedule(optimizer.global_step))
    return known[1]
