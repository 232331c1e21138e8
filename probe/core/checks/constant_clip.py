"""Check for gradients that are clipped strongly at every update."""

from __future__ import annotations

from collections.abc import Iterator

from probe.core.checks.check import CheckFinding, JudgedUpdate, NotApplicable
from probe.core.checks.loop_check import UnusualCheck
from probe.core.checks.streak import Streak
from probe.core.language import message

UPDATES, FACTOR = 100, 0.1


class ConstantClip(UnusualCheck):
    """Note that the gradients were clipped to less than a tenth in each of the latest 100 updates."""

    name = "constant-clip"
    title = "Always clipped"
    why = "The limit sets the size of every update, and the learning rate means something else."
    source = "https://github.com/huggingface/transformers/issues/35438"
    sees = "the factor by which the gradients are clipped at each update, where it is known on the host"
    remedy = "Raise the norm that is clipped to, or divide the loss by the number of micro batches."
    lacks = NotApplicable("no gradient was clipped")

    def __init__(self) -> None:
        super().__init__()
        self._streak, self._clipped = Streak(UPDATES), 1.0

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        facts = update.facts
        if facts.outcome == "skipped" or facts.clip != facts.clip:
            return
        clipped = facts.clip < FACTOR
        self.judged |= facts.clip < 1
        self._clipped = max(self._clipped, facts.clip) if self._streak.count else facts.clip
        if self._streak.completes(clipped, facts.step):
            text = message(
                "the gradients were clipped to less than {factor} of their norm in {updates} updates in a row",
                factor=FACTOR,
                updates=UPDATES,
            )
            yield self.finding(facts, self._streak.since, text, {"factor": self._clipped, "updates": UPDATES})
