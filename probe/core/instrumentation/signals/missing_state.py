"""Optimizers that keep nothing of what a configuration wants of their state."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from probe.core.backend.protocols import Optimizer, Shard, Tensor
from probe.core.instrumentation.context import Run
from probe.core.instrumentation.selection import Watched

_log = logging.getLogger("probe")


@contextmanager
def missing_state(
    run: Run, key: str, has: Callable[[Mapping[str, Tensor | Shard]], bool], wanted: str
) -> Iterator[None]:
    """Logs once of each optimizer that it keeps no such state.

    That shows after an update that was applied to a gradient: some optimizers make their state in the first one.

    Args:
        key: of the configuration.
        has: whether the state of a parameter has something to collect.
        wanted: the state that ``has`` looks for.
    """
    updating: set[int] = set()
    known: set[int] = set()
    hooks = run.framework.hooks

    def before(optimizer: Optimizer, owned: list[Watched], _: Tensor | None) -> None:
        if id(optimizer) in known:
            return
        if any(hooks.gradient(optimizer, parameter.thing, run.main_grad) is not None for parameter in owned):
            updating.add(id(optimizer))

    def after(optimizer: Optimizer, owned: list[Watched]) -> None:
        if id(optimizer) not in updating:
            return
        updating.discard(id(optimizer))
        if run.clock.outcome != "applied":
            return
        known.add(id(optimizer))
        if not any(has(hooks.state(optimizer, parameter.thing)) for parameter in owned):
            _log.log(
                logging.WARNING if run.framework.groups.rank() == 0 else logging.INFO,
                "%s has no effect: expected %s, %s keeps none for the parameters watched; leave %s out",
                key,
                wanted,
                type(optimizer).__name__,
                key,
            )

    with run.before_update.added(before), run.after_update.added(after):
        yield
