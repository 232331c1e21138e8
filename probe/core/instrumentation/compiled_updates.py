"""Updates that are compiled, in which no hook runs: hooks elsewhere look for them."""

from __future__ import annotations

import logging
from collections.abc import Callable

from probe.core.backend.protocols import Optimizer
from probe.core.instrumentation.context import Run

COMPILED = "optimizer: updates that were compiled, in which no hook runs"
"""Kind of loss, counted for each such update."""
_log = logging.getLogger("probe")


class CompiledUpdates:
    """Optimizers whose updates are compiled.

    Args:
        ended: is called for each update since the last hook.
    """

    def __init__(self, ended: Callable[[Optimizer], None]) -> None:
        self._ended = ended
        self._unseen: dict[int, tuple[Optimizer, Callable[[], int], int]] = {}
        """Optimizers, each with a function whose result changes with each update, and its result in the latest hook."""

    def __bool__(self) -> bool:
        return bool(self._unseen)

    def look_in(self, run: Run) -> None:
        """Look for updates in each hook of ``run``, if any update is compiled."""
        if self._unseen:
            run.look_first(lambda: self.find(run))

    def add(self, run: Run, optimizer: Optimizer, updates: Callable[[], int]) -> None:
        """Look for the updates of ``optimizer``, too."""
        if not self._unseen:
            _log.warning(
                "the update of %s is compiled by torch.compile, where no hook runs: its steps are counted at the next "
                "forward or backward that a hook sees, and gradients after reduction, parameters and state are not "
                "recorded; to record them call optimizer.step() outside of what is compiled",
                type(optimizer).__name__,
            )
        if id(optimizer) not in self._unseen:
            self._unseen[id(optimizer)] = (optimizer, updates, updates())
        self.look_in(run)

    def find(self, run: Run) -> None:
        """Report each update since the last hook."""
        for identity, (optimizer, updates, before) in [*self._unseen.items()]:
            if (now := updates()) != before:
                self._unseen[identity] = (optimizer, updates, now)
                run.faults.lost(COMPILED, 1)
                self._ended(optimizer)
