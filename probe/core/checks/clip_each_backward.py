"""Check for gradients that are clipped while they are accumulated."""

from __future__ import annotations

from collections.abc import Iterator

from probe.core.checks.check import CheckFinding, JudgedUpdate, NotApplicable
from probe.core.checks.loop_check import FactCheck
from probe.core.checks.streak import Streak
from probe.core.language import message

UPDATES = 3


class ClipEachBackward(FactCheck):
    """Report that what the backwards so far have accumulated is clipped after each of them, in three updates in a row.

    Only clips that have made gradients smaller count. Gradients that are cleared after each clip, as where each sample
    is clipped by itself, are not accumulated.
    """

    name = "clip-each-backward"
    title = "Clipped after each backward"
    why = "The first micro batches are clipped again and again, and the last one decides the update."
    source = "https://github.com/huggingface/transformers/issues/1563"
    sees = "the order of backwards, calls to clip and updates, and the factors of the clips"
    remedy = "Clip once, after the last backward of an update."
    lacks = NotApplicable("no update has several backwards with a clip")

    def __init__(self) -> None:
        super().__init__()
        self._streak = Streak(UPDATES)

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        facts = update.facts
        self.judged |= facts.backwards > 1 and facts.clips is not None
        every = facts.clips is not None and facts.early_clips >= facts.backwards - 1 > 0
        if self._streak.completes(every, facts.step):
            text = message(
                "gradients are clipped after each of the {backwards} backwards of an update, in {updates} updates in a "
                "row: they should be clipped once, after the last",
                backwards=facts.backwards,
                updates=UPDATES,
            )
            yield self.finding(facts, self._streak.since, text, {"backwards": facts.backwards})
