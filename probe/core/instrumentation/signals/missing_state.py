"""Optimizers that keep nothing of what a configuration wants of their state."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from probe.core.backend.protocols import Optimizer, Shard, Tensor
from probe.core.instrumentation.context import Run
from probe.core.instrumentation.selection import Watched

_log = logging.getLogger("probe")


class MissingState:
    """Logs once of each optimizer that it keeps no such state.

    That shows after an update that was applied to a gradient: some optimizers make their state in the first one.

    Args:
        key: of the configuration.
        has: whether what is kept for a parameter is something to collect.
        wanted: what ``has`` looks for.
    """

    def __init__(self, run: Run, key: str, has: Callable[[Mapping[str, Tensor | Shard]], bool], wanted: str) -> None:
        self._run, self._key, self._has, self._wanted = run, key, has, wanted
        self._about_to: set[int] = set()
        self._known: set[int] = set()
        run.before_update.append(self._before)
        run.after_update.append(self._after)

    def _before(self, optimizer: Optimizer, owned: list[Watched], _: Tensor | None) -> None:
        if id(optimizer) in self._known:
            return
        gradient, main_grad = self._run.framework.hooks.gradient, self._run.main_grad
        if any(gradient(optimizer, parameter.thing, main_grad) is not None for parameter in owned):
            self._about_to.add(id(optimizer))

    def _after(self, optimizer: Optimizer, owned: list[Watched]) -> None:
        if id(optimizer) not in self._about_to:
            return
        self._about_to.discard(id(optimizer))
        if self._run.outcome != "applied":
            return
        self._known.add(id(optimizer))
        state = self._run.framework.hooks.state
        if not any(self._has(state(optimizer, parameter.thing)) for parameter in owned):
            _log.log(
                logging.WARNING if self._run.framework.groups.rank() == 0 else logging.INFO,
                "%s has no effect: expected %s, %s keeps none for the parameters watched; leave %s out",
                self._key,
                self._wanted,
                type(optimizer).__name__,
                self._key,
            )
