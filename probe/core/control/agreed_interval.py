"""The interval between sampled steps within a budget, agreed on by all ranks."""

from __future__ import annotations

from collections.abc import Callable

from probe.core.distributed.announcements import Notices
from probe.core.faults import Faults
from probe.core.instrumentation.pace import Pace

CHANGE = 0.25
"""Part of the interval by which another one must differ."""


class AgreedPace(Pace):
    """The same interval on all ranks, changed at the same step: the first rank says which, as what it has measured
    wants it.

    Args:
        ahead: in how many steps every rank will have seen what is written at a step.
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
        self._notices, self._leads, self._ahead, self._faults = notices, leads, ahead, faults
        self._best = interval
        self._told: tuple[int, int] | None = None
        """From which step on which interval holds."""

    def between(self, step: int) -> None:
        try:
            self._look()
            if self._leads and self._told is None and abs(self._best - self.interval) > CHANGE * self.interval:
                self._notices.give({"step": step + self._ahead(step), "interval": self._best})
                self._look()
        except (OSError, ValueError, KeyError, TypeError) as error:
            self._faults.note("pace", error)
        if self._told is not None and step >= self._told[0]:
            if step > self._told[0]:
                self._faults.note("pace", TimeoutError(f"seen at step {step}, too late for step {self._told[0]}"))
            (_, self.interval), self._told = self._told, None

    def _look(self) -> None:
        if self._told is None and (told := self._notices.read()) is not None:
            self._told = int(told["step"]), int(told["interval"])

    def _want(self, interval: int) -> None:
        self._best = interval
