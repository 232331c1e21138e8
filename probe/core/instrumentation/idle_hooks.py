"""The hooks of sources between sampled steps: taken out where several steps in a row are not sampled, since a hook
without effect costs time, too."""

from __future__ import annotations

import time

from probe.core.backend.protocols import Hooks, PausableHook, Remove
from probe.core.door import attempt
from probe.core.faults import Faults

FAILED = "hooks between sampled steps"
"""Place of failures."""
UNPLACED = "hooks: steps that were due to be sampled, but began within a backward, where none can be placed"
"""Kind of loss that is counted for a step that cannot be sampled."""


class IdleHooks:
    """The hooks that can be taken out for a while.

    Args:
        faults: counter of hooks that could not be moved.
        may_rest: false if all hooks are to stay.
    """

    def __init__(self, faults: Faults, may_rest: bool) -> None:
        self._faults, self._may_rest = faults, may_rest
        self._hooks: dict[PausableHook, None] = {}
        self.resting = False
        """True if the hooks are taken out."""

    def keep(self, remove: Remove) -> Remove:
        """Note a hook that was placed; return the function that removes it."""
        if not isinstance(remove, PausableHook):
            return remove
        hook = remove
        self._hooks[hook] = None

        def gone() -> None:
            hook()
            self._hooks.pop(hook, None)  # only now: see :meth:`remove`

        return gone

    def remove(self) -> None:
        """Remove the hooks whose removal was interrupted."""
        while self._hooks:
            hook = next(reversed(self._hooks))
            hook()
            self._hooks.pop(hook, None)

    def move(self, hooks: Hooks) -> float:
        """Put the hooks back if they rest; else take them out, if the framework lets them. Do neither in a backward,
        where frameworks iterate over them. Return the seconds in which they were taken out."""
        if hooks.backward_id() != -1:
            return 0.0
        if self.resting:
            self.wake()
            return 0.0
        if not hooks.may_rest():
            return 0.0
        begun = time.perf_counter()
        self.rest()
        return time.perf_counter() - begun

    def rest(self) -> None:
        """Take all hooks out, the last first: each knows the hooks before it, which are there both times."""
        self.resting = True
        for hook in reversed(self._movable()):
            attempt(self._faults, FAILED, hook.rest)

    def wake(self) -> None:
        """Put all hooks back."""
        self.resting = False
        for hook in self._movable():
            attempt(self._faults, FAILED, hook.wake)

    def _movable(self) -> list[PausableHook]:
        return [*self._hooks] if self._may_rest else []
