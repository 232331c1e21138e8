"""Check for a gradient scaler that skips one update after the other."""

from __future__ import annotations

from collections.abc import Iterator

from probe.core.checks.check import CheckFinding, JudgedUpdate, NotApplicable
from probe.core.checks.loop_check import FactCheck
from probe.core.checks.streak import Streak
from probe.core.language import message

FEW, UPDATES = 3, 5
"""Updates in a row for a warning, and for what is critical."""
WARM_UP = 64
"""Updates at the beginning in which the scale may fall to a usable one."""
WARM = 10
"""Applied updates in a row that end it."""


class ScalingFails(FactCheck):
    """Report three updates in a row that the gradient scaler skipped, and five as critical.

    A scaler begins with too large a scale, and tries a larger one now and then, which costs one update each time. The
    warm-up ends with ten applied updates in a row, or after 64.
    """

    name = "scaling-fails"
    grade = "critical"
    title = "Loss scaling fails"
    why = "The weights stand still while the schedule and the data go on."
    source = "https://github.com/facebookresearch/metaseq/tree/main/projects/OPT/chronicles"
    sees = "outcome of each update"
    remedy = "Find the module whose values leave the range of float16, or train it in bfloat16 or float32."
    lacks = NotApplicable("no update was skipped, nor shown to be applied")

    def __init__(self) -> None:
        super().__init__()
        self._streak, self._warm_up, self._applied = Streak(UPDATES), Streak(WARM_UP), 0
        self._few = Streak(FEW)
        self._warm = False

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        facts = update.facts
        if facts.outcome not in ("applied", "skipped"):
            return
        self.judged = True
        skipped = facts.outcome == "skipped"
        self._applied = 0 if skipped else self._applied + 1
        if not self._warm:
            ended = self._warm_up.completes(True, facts.step)
            self._warm = ended or self._applied >= WARM
            if ended and skipped:
                yield self._failed(update, WARM_UP, self._warm_up.since)
            return
        if self._few.completes(skipped, facts.step):
            text = message(
                "the gradient scaler has skipped {few} updates in a row since step {since}, though its scale was a "
                "usable one",
                few=FEW,
                since=self._few.since,
            )
            yield self.finding(facts, self._few.since, text, {"updates": FEW}, (), "warning")
        if self._streak.completes(skipped, facts.step):
            yield self._failed(update, UPDATES, self._streak.since)

    def _failed(self, update: JudgedUpdate, updates: int, since: int) -> CheckFinding:
        text = message(
            "the gradient scaler has skipped updates since step {since}, {updates} so far: nothing is trained",
            since=since,
            updates=updates,
        )
        return self.finding(update.facts, since, text, {"updates": updates})
