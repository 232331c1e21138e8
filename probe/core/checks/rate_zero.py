"""Check for a learning rate that falls to zero while training goes on."""

from __future__ import annotations

from collections.abc import Iterator
from math import isnan

from probe.core.checks.check import CheckFinding, JudgedUpdate
from probe.core.checks.loop_check import ChangeCheck
from probe.core.checks.streak import Streak

UPDATES = 3


class RateZero(ChangeCheck):
    """Report that all learning rates were above zero, and are zero in three updates in a row.

    A warm-up that begins at zero, and a schedule that touches zero before it starts again or as the run ends, do so for
    one or two updates.
    """

    name = "rate-zero"
    title = "Learning rate zero"
    source = "https://github.com/SafeAILab/EAGLE/pull/107"
    sees = "learning rates of the optimizer's groups at each update"
    remedy = "Give the schedule the number of updates that the run has, and step it once an update."
    lacks = "no learning rate is known on the host"

    def __init__(self) -> None:
        super().__init__()
        self._highest, self._streak = 0.0, Streak(UPDATES)

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        facts, rates = update.facts, update.facts.rates
        if not rates or any(map(isnan, rates)):
            return
        self.judged = True
        if min(rates) > 0:
            self._highest = max(self._highest, *rates)
        zero = self._highest > 0 and not any(rates)
        if self._streak.completes(zero, facts.step):
            text = f"all learning rates are 0 in {UPDATES} updates in a row, and were up to {self._highest:.3g} before"
            yield self.finding(facts, self._streak.since, text, {"highest": self._highest})
