"""Check for leaps of the loss."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite

from probe.core.checks.check import CheckFinding, Grade, JudgedUpdate
from probe.core.checks.leap import Leap, LeapMemory
from probe.core.checks.loop_check import ChangeCheck, norms_of


def series_of(update: JudgedUpdate) -> tuple[int, bytes]:
    """Return the key of the series that an update belongs to: tasks, stages of training and numbers of micro batches
    differ in the parameters that have a gradient, and in the backwards."""
    facts, norms = update.facts, norms_of(update)
    pattern = facts.gradients.there if norms is None else facts.gradients.there & (norms != 0)
    return facts.backwards, pattern.tobytes()


class LossLeap(ChangeCheck):
    """Report that the loss leaps above all that the run has had, and comes back at once or goes on rising.

    Compared with the median of the latest 50 losses of updates with the same parameters and backwards, a leap is eight
    robust standard deviations and three times the largest deviation among them. Losses that are uneven, as in
    reinforcement learning, are not judged; a loss that stays where it has leapt to, or falls from there, is a note.
    """

    name = "loss-leap"
    title = "Loss leaps"
    source = "https://github.com/facebookresearch/metaseq/tree/main/projects/OPT/chronicles"
    sees = "the root of each backward, as soon as its value is on the host"
    remedy = "Look at the batch of this step, at the learning rate, and at the norms of the gradients; clip them."
    lacks = "fewer than 20 losses of the same kind were seen"

    def __init__(self) -> None:
        super().__init__()
        self._memory = LeapMemory(logarithmic=False)

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        facts = update.facts
        if facts.outcome == "skipped" or not isfinite(facts.loss):
            return
        leap = self._memory.judge(series_of(update), facts.loss, facts.step)
        self.judged = self.judged or self._memory.ready
        if leap is not None:
            yield self._leap(update, leap)

    def _leap(self, update: JudgedUpdate, leap: Leap) -> CheckFinding:
        course = {"returned": "and has come back", "rising": "and goes on rising", "stayed": "and is at a new level"}
        text = (
            f"the loss has leapt to {leap.value:.5g} at step {leap.since}, {course[leap.course]}; its median before is "
            f"{leap.median:.5g}"
        )
        grade: Grade = "note" if leap.course == "stayed" else "warning"
        evidence = {"loss": leap.value, "median": leap.median, "deviations": leap.deviations}
        return self.finding(update.facts, leap.since, text, evidence, (), grade)
