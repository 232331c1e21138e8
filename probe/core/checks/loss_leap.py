"""Check for leaps of the loss."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from math import isfinite

from probe.core.checks.check import CheckFinding, Grade, JudgedUpdate
from probe.core.checks.leap import Leap, LeapMemory
from probe.core.checks.loop_check import ChangeCheck
from probe.core.language import message

IMMENSE = 10.0
"""Factor above all that the run has had, of the loss and of the norm of all gradients, that is reported at once."""
LEAST = 20
"""Updates before a leap can be judged."""
TOGETHER = 4
"""Updates in a row within which the leaps of the loss and of the gradients come."""


class LossLeap(ChangeCheck):
    """Report that the loss leaps above all that the run has had, and comes back at once or goes on rising.

    Compared with the median of the latest 50 losses of updates with the same parameters and backwards, a leap is eight
    robust standard deviations and three times the largest deviation among them. Losses that are uneven, as in
    reinforcement learning, are not judged; a loss that stays where it has leapt to, or falls from there, is a note.
    A loss and a norm of all gradients that within four updates are both ten times what the run has had before are
    reported at once.
    """

    name = "loss-leap"
    title = "Loss leaps"
    why = "A spike can cost days of training, and one that does not come back ends the run."
    source = "https://github.com/facebookresearch/metaseq/tree/main/projects/OPT/chronicles"
    sees = "the root of each backward, as soon as its value is on the host"
    remedy = "Look at the batch of this step, at the learning rate, and at the norms of the gradients; clip them."
    lacks = "fewer than 20 losses of the same kind were seen"

    def __init__(self) -> None:
        super().__init__()
        self._memory = LeapMemory(logarithmic=False)
        self._updates = 0
        """Number of updates."""
        self._highest = (0.0, 0.0)
        """Largest loss and largest norm of all updates but the latest."""
        self._latest: deque[tuple[float, float]] = deque(maxlen=TOGETHER)
        """Loss and norm of the latest updates."""
        self._immense = -TOGETHER
        """Step of the last that was reported."""

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        facts = update.facts
        if facts.outcome == "skipped" or not isfinite(facts.loss):
            return
        leap = self._memory.judge((facts.backwards, update.pattern), facts.loss, facts.step)
        self.judged = self.judged or self._memory.ready
        if self._is_immense(update):
            self._immense = facts.step
            highest = self._highest[0]
            text = message(
                "the loss has leapt to {loss:.5g} and the gradients with it; it was never above {highest:.5g}",
                loss=facts.loss,
                highest=highest,
            )
            yield self.finding(facts, facts.step, text, {"loss": facts.loss, "highest": highest})
        elif leap is not None and not leap.since <= self._immense <= facts.step:
            yield self._leap(update, leap)

    def _is_immense(self, update: JudgedUpdate) -> bool:
        """Return whether loss and gradients are far beyond all before; count the update."""
        total = update.total
        if len(self._latest) == TOGETHER:
            (loss, norm), (latest_loss, size) = self._highest, self._latest[0]
            self._highest = max(loss, latest_loss), max(norm, size)
        self._latest.append((abs(update.facts.loss), total if isfinite(total) else 0.0))
        self._updates += 1
        loss, norm = self._highest
        if self._updates <= LEAST or not norm or update.facts.step - self._immense < TOGETHER:
            return False
        return update.facts.loss > IMMENSE * loss and max(norm for _, norm in self._latest) > IMMENSE * norm

    def _leap(self, update: JudgedUpdate, leap: Leap) -> CheckFinding:
        course = {
            "returned": message("and has come back"),
            "rising": message("and goes on rising"),
            "stayed": message("and is at a new level"),
        }
        text = message(
            "the loss has leapt to {value:.5g} at step {since}, {course}; its median before is {median:.5g}",
            value=leap.value,
            since=leap.since,
            course=course[leap.course],
            median=leap.median,
        )
        grade: Grade = "note" if leap.course == "stayed" else "warning"
        evidence = {"loss": leap.value, "median": leap.median, "deviations": leap.deviations}
        return self.finding(update.facts, leap.since, text, evidence, (), grade)
