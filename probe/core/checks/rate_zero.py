"""Check for a learning rate that falls to zero while training goes on."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, isnan

from probe.core.checks.check import CheckFinding, JudgedUpdate
from probe.core.checks.loop_check import ChangeCheck
from probe.core.checks.update_facts import UpdateFacts
from probe.core.language import message

UPDATES, MOST, SHARE = 3, 8, 0.03
"""Updates in a row: least, most, and their part of the updates so far. A schedule may end just before the run."""
NOTHING, LONG = 1e-6, 0.1
"""Part of its highest so far below which a rate is next to nothing, and the part of all updates, at least, in which it
must be so: a cosine that ends at 0 is below it in less than a thousandth of its updates, a polynomial of the fifth
power in a sixteenth."""
NEVER = 20
"""Updates at rate zero from the beginning of a run."""


class RateZero(ChangeCheck):
    """Report that all learning rates were above zero, and are zero in three updates in a row; in up to eight of a run
    that is longer.

    A warm-up that begins at zero, and a schedule that touches zero before it starts again or as the run ends, do so for
    fewer updates. Rates that are zero in all of the first twenty updates are reported, too, unless there is another
    optimizer. One that rests at zero and starts again does so in each of its cycles: it is reported once. Rates below a
    millionth of the highest in a tenth of all updates, twenty at least, are reported, too.
    """

    name = "rate-zero"
    title = "Learning rate zero"
    why = "The rest of the run changes nothing."
    source = "https://github.com/SafeAILab/EAGLE/pull/107"
    sees = "learning rates of the optimizer's groups at each update"
    remedy = "Give the schedule the number of updates that the run has, and step it once an update."
    lacks = "no learning rate is known on the host"

    def __init__(self) -> None:
        super().__init__()
        self._highest = 0.0
        """Highest rate so far."""
        self._number = 0
        """Number of updates."""
        self._zero = 0
        """Updates in a row at rate zero."""
        self._since = -1
        """Step of the first of these."""
        self._nothing = 0
        """Updates in a row at rate zero, of the only optimizer."""
        self._longest = 0
        """Most updates in a row at rate zero after which the rate has risen again."""
        self._faint, self._faint_since = 0, -1
        """Updates in a row at rates that are next to nothing, and the step of the first."""

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        facts, rates = update.facts, update.facts.rates
        if not rates or any(map(isnan, rates)):
            return
        self.judged = True
        if min(rates) > 0:
            self._highest = max(self._highest, *rates)
        self._nothing = 0 if any(rates) or not facts.alone else self._nothing + 1
        if self._nothing == NEVER and not self._highest:
            text = message(
                "all learning rates are 0 in all of the first {never} updates: they change nothing", never=NEVER
            )
            yield self.finding(facts, facts.step - NEVER + 1, text, {"updates": NEVER})
        yield from self._fades(facts, max(rates))
        zero = self._highest > 0 and not any(rates)
        if not zero:
            if self._highest > 0:
                self._longest = max(self._longest, self._zero)
            self._number, self._zero = self._number + self._zero + 1, 0
            return
        self._since = self._since if self._zero else facts.step
        self._zero += 1
        if self._zero == max(2 * self._longest, min(MOST, max(UPDATES, ceil(SHARE * self._number)))):
            text = message(
                "all learning rates are 0 in {zero} updates in a row, up to {highest:.3g} before",
                zero=self._zero,
                highest=self._highest,
            )
            yield self.finding(facts, self._since, text, {"highest": self._highest})

    def _fades(self, facts: UpdateFacts, rate: float) -> Iterator[CheckFinding]:
        """Count an update at a rate that is next to nothing; report it once it is a tenth of all."""
        if not 0 < rate < NOTHING * self._highest:
            self._faint = 0
            return
        self._faint_since = self._faint_since if self._faint else facts.step
        self._faint += 1
        if self._faint == max(NEVER, ceil(LONG * self._number)):
            text = message(
                "all learning rates are {rate:.3g} or less in {faint} updates in a row, up to {highest:.3g} before",
                rate=NOTHING * self._highest,
                faint=self._faint,
                highest=self._highest,
            )
            yield self.finding(facts, self._faint_since, text, {"rate": rate, "highest": self._highest})
