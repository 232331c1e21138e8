"""Check for a schedule that goes on after its end."""

from __future__ import annotations

from collections.abc import Iterator
from math import isnan

from probe.core.checks.check import CheckFinding, JudgedUpdate
from probe.core.checks.loop_check import ChangeCheck
from probe.core.language import message

FALLS, RISES = 4, 3
"""Changes of the rate in a row, at least."""
BOTTOM, RETURN, STEP = 0.01, 0.05, 0.25
"""Parts of the highest rate: one at which a schedule has ended, one to which it has risen again, and the largest change
that is no new start."""
ALIKE = 4.0
"""Height of the first rises at most, in units of that of as many last falls: a schedule of another length rises along
another curve."""
FLAT = 0.6
"""Part of the largest change at most that the first change at the bottom of a cosine has; a straight line has 1."""


class ScheduleReturns(ChangeCheck):
    """Report a learning rate that falls to nothing as a cosine does, and rises again along the same curve.

    New starts leap, and warm-ups and cycles that are straight lines rise as fast at the bottom as later. A schedule
    that advances several steps in each update, and ends at a number of steps that the program has, is reported at once.
    """

    name = "schedule-ahead"
    title = "Schedule runs ahead"
    why = "The rate reaches its end early, or rises again."
    source = "https://github.com/huggingface/accelerate/issues/2926"
    sees = "learning rates of the optimizer's groups and the step of its schedule at each update"
    remedy = "Step the schedule once an update, or make it for as many steps as it is stepped."
    lacks = "no learning rate is known on the host"

    def __init__(self) -> None:
        super().__init__()
        self._last, self._highest = 0.0, 0.0
        self._falls = list[float]()
        """Latest changes of the rate since its highest."""
        self._rises, self._lowest, self._first_rise, self._largest_rise = 0, 0.0, 0.0, 0.0
        """Number of rises since the lowest rate, that rate, and the first and the largest of them."""
        self._height = 0.0
        """Height of the first rises together."""
        self._since = -1

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        facts = update.facts
        if facts.overrun and facts.backwards == 1:  # of several, it may be stepped with each by intention
            # it was so in the last three updates, and counts from the one before these
            yield self.finding(facts, max(0, facts.step - 3), facts.overrun, {})
        rate = max(facts.rates, default=float("nan"))
        if isnan(rate):
            return
        self.judged = True
        before, change, self._last = self._last, rate - self._last, rate
        self._highest = max(self._highest, rate)
        if change < 0:
            self._falls, self._rises = [*self._falls[-FALLS:], -change] if not self._rises else [-change], 0
        elif change > 0 and self._falls:
            if not self._rises:
                self._since, self._lowest, self._first_rise, self._largest_rise = facts.step, before, change, 0.0
            self._rises, self._largest_rise = self._rises + 1, max(self._largest_rise, change)
            self._height = rate - self._lowest if self._rises <= RISES else self._height
            if self._has_returned(rate):
                text = message(
                    "the learning rate fell to next to nothing, and rises again along the same curve: {rate:.3g} now, "
                    "up to {highest:.3g} before",
                    rate=rate,
                    highest=self._highest,
                )
                yield self.finding(facts, self._since, text, {"rate": rate, "highest": self._highest})
                self._falls, self._rises = [], 0

    def _has_returned(self, rate: float) -> bool:
        """Return whether the rate has come back from a flat bottom."""
        if len(self._falls) < FALLS or self._rises < RISES or self._lowest > BOTTOM * self._highest:
            return False
        if self._height > ALIKE * sum(self._falls[-RISES:]):
            return False
        flat = self._first_rise <= FLAT * self._largest_rise and self._falls[-1] <= FLAT * max(self._falls)
        return flat and self._largest_rise <= STEP * self._highest and rate >= RETURN * self._highest
