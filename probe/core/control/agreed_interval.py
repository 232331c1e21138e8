"""The interval between sampled steps within a budget, the same on all ranks."""

from __future__ import annotations

from collections.abc import Callable

from probe.core.control.agreement import ScheduledChange
from probe.core.distributed.announcements import Notices
from probe.core.faults import Faults
from probe.core.instrumentation.pace import Pace

CHANGE = 0.25
"""Part of the interval by which a new one must differ."""


class AgreedPace(Pace):
    """The same interval on all ranks, changed at the same step: the first rank announces it, from its own measurements.

    Args:
        ahead: returns the number of steps after which every rank has read an announcement of a step.
    """

    def __init__(
        self,
        budget: float,
        interval: int,
        notices: Notices,
        leads: bool,
        ahead: Callable[[int], int],
        faults: Faults,
    ) -> None:
        super().__init__(budget, interval)
        self._leads, self._ahead, self._best = leads, ahead, interval
        self._next = ScheduledChange("pace", notices, lambda notice: int(notice["interval"]), faults)

    def between(self, step: int) -> None:
        with self._next.counted():
            due = self._next.next_step()
            if self._leads and due is None and abs(self._best - self.interval) > CHANGE * self.interval:
                self._next.announce(step + self._ahead(step), interval=self._best)
        if (interval := self._next.poll(step)) is not None:
            self.interval = interval

    def _want(self, interval: int) -> None:
        self._best = interval
