"""Check for gradients that nothing clears between updates."""

from __future__ import annotations

from collections.abc import Iterator

from probe.core.checks.check import CheckFinding, JudgedUpdate
from probe.core.checks.loop_check import FactCheck
from probe.core.checks.places import ancestors
from probe.core.checks.streak import Streak

UPDATES = 3


class StaleGradient(FactCheck):
    """Report that updates apply again what the update before has applied.

    At least half of the gradients count, in three applied updates in a row: what another optimizer's backward has left
    behind, as in a GAN, is not what this one has applied. A gradient is again the old one from the second update on.
    """

    name = "stale-gradient"
    title = "Gradients not cleared"
    source = "https://stackoverflow.com/questions/60335387"
    sees = "identities and versions of the gradients at each update; no wait"
    remedy = "Call optimizer.zero_grad() once an update, before the first backward or after the step."
    lacks = "no second update with a gradient was applied"

    def __init__(self) -> None:
        super().__init__()
        self._streak = Streak(UPDATES)

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        facts = update.facts
        there, again = facts.gradients.there, facts.gradients.again
        number = int(there.sum())
        if facts.outcome != "applied" or not number:
            return
        count = int((there & again).sum())
        self.judged = True
        if self._streak.completes(2 * count >= number, facts.step):
            stale = [name for name, is_stale in zip(facts.names, there & again, strict=True) if is_stale]
            where = () if count == number else ancestors(stale, facts.names)
            text = (
                f"{count} of {number} gradients still hold what the update before has applied, in {UPDATES} updates in "
                "a row: nothing clears them"
            )
            yield self.finding(facts, self._streak.since, text, {"gradients": number, "stale": count}, where)
