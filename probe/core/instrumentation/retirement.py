"""The end of a run whose schedule has ended: at a forward, where hooks can be removed safely. At the end of a step the
framework still iterates over them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from probe.core.backend.protocols import Hooks, Module, Remove
from probe.core.faults import Faults


class Retirement:
    """Removal of the hooks of a run at the first forward at which nothing waits.

    Args:
        waits: returns true if the run cannot end now.
    """

    def __init__(self, hooks: Hooks, waits: Callable[[], bool]) -> None:
        self._hooks, self._waits = hooks, waits
        self.remove: Callable[[], None] | None = None
        """Function that ends the run; None if the run does not end by itself, or is to end at a forward already."""
        self.disarm: Remove = lambda: None
        """Removes the hook that ends the run."""
        self.under_way = False
        """True while :attr:`remove` runs."""

    def arm(self, model: Module, faults: Faults) -> Remove:
        """End the run at a forward of ``model`` from now on; return the function that undoes this."""
        remove, self.remove = self.remove, None
        if remove is not None:
            self.disarm = self._hooks.at_next_forward(model, partial(self._retire, remove), faults)
        return self.disarm

    def _retire(self, remove: Callable[[], None]) -> None:
        if self._waits():
            return
        self.under_way = True
        try:
            remove()
        finally:
            self.under_way = False
