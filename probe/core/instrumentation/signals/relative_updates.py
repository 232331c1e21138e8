"""``relative_update``: the size of the change of each parameter by an update, relative to the parameter."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from probe.core.backend.protocols import Arrays, Numbers, Optimizer, Shard, Tensor
from probe.core.instrumentation.context import Run
from probe.core.instrumentation.recorder import Recorder
from probe.core.instrumentation.selection import Watched
from probe.core.instrumentation.signals.optimizer_updates import unwrapped
from probe.core.naming import COLUMNS, RELATIVE_UPDATE
from probe.core.records import Array, Key

ONE = ("sum",)
"""The columns of a recorder whose rows have one number of any kind each."""

_log = logging.getLogger("probe")


@contextmanager
def relative_updates(run: Run) -> Iterator[None]:
    """Record the root mean square of the change of each parameter by this step's update over that of the parameter
    before it, whatever the optimizer. The numbers before the update are copied, and given up after it."""
    if (ops := run.framework.arrays) is None:
        _log.warning("relative_update: %s offers nothing to compute it with", run.framework.name)
        yield
        return
    main, tensors, hooks = run.recorder, run.framework.tensors, run.framework.hooks
    collected = Recorder(tensors, ONE, run.settings.eps, run.faults.note, lambda: len(main))
    copies: dict[Key, Numbers] = {}

    def read(optimizer: Optimizer, owned: list[Watched]) -> list[tuple[Key, tuple[Tensor, Numbers]]]:
        return run.read_each(
            owned,
            lambda parameter: _floating(ops, hooks.value(optimizer, parameter.thing), tensors.numbers),
            f"{RELATIVE_UPDATE} of {{}}",
        )

    def before(optimizer: Optimizer, owned: list[Watched], _: Tensor | None) -> None:
        with ops.quiet():
            for key, (_, numbers) in read(optimizer, owned):
                copies[key] = numbers * 1

    def after(optimizer: Optimizer, owned: list[Watched]) -> None:
        with ops.quiet():
            for key, (tensor, numbers) in read(optimizer, owned):
                copy = copies.pop(key, None)
                if copy is not None and tuple(copy.shape) == tuple(numbers.shape):
                    block = ops.column([_squares(numbers - copy), _squares(copy)])
                    collected.compute(RELATIVE_UPDATE, key, tensor, block, _ratio)

    with (
        run.collectors.added(collected),
        run.step_ended.added(collected.clear),
        run.step_ended.added(copies.clear),
        run.before_update.added(before),
        run.after_update.added(after),
    ):
        yield


def _floating(
    ops: Arrays, value: Tensor | Shard | None, numbers_of: Callable[[Tensor], Numbers]
) -> tuple[Tensor, Numbers] | None:
    """Return the tensor that this process holds and its numbers; None if they are none of floating point, or none."""
    if value is None:
        return None
    tensor, _ = unwrapped(value)
    numbers = numbers_of(tensor)
    if not ops.is_floating(numbers) or 0 in tuple(numbers.shape):
        return None
    return tensor, ops.wide(numbers)


def _squares(numbers: Numbers) -> Numbers:
    flat = numbers.reshape(-1)
    return (flat * flat).sum(-1)


def _ratio(rows: Array) -> Mapping[str, float]:
    """Return the ratio; NaN for a parameter of zeros."""
    change, size = (float(row) for row in rows.reshape(-1))
    (column,) = COLUMNS[RELATIVE_UPDATE]
    return {column: math.sqrt(change / size) if size > 0 else math.nan}
