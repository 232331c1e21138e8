"""Check for clipping that gets no gradient."""

from __future__ import annotations

from collections.abc import Iterator

from probe.core.checks.check import CheckFinding, JudgedUpdate
from probe.core.checks.loop_check import FactCheck
from probe.core.checks.streak import Streak
from probe.core.language import message

UPDATES = 3


class ClipOfNothing(FactCheck):
    """Report that gradients are clipped of which there is none, and those that the update applies are not clipped, in
    three updates in a row: an iterator of parameters was spent before, or the clip stands before the backward.

    A clip of a part that gets no gradient is no finding beside one of others, or with several optimizers.
    """

    name = "clip-of-nothing"
    title = "Nothing is clipped"
    why = "The limit protects nothing: the first large gradient is applied as it is."
    source = "https://github.com/pytorch/pytorch/issues/148259"
    sees = "the gradients that each call to clip gets"
    remedy = (
        "Clip between the backward and the step, and pass a list: an iterator such as filter() is spent after one use."
    )

    def __init__(self) -> None:
        super().__init__()
        self._streak = Streak(UPDATES)

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        facts = update.facts
        self.judged = True
        holds = facts.clipped_nothing and facts.clips is None and facts.clip == 1 and facts.alone
        if self._streak.completes(holds and update.total > 0, facts.step):
            text = message(
                "no gradient was there to be clipped in {updates} updates in a row, and those that were applied were "
                "not clipped",
                updates=UPDATES,
            )
            yield self.finding(facts, self._streak.since, text, {"updates": UPDATES, "norm": update.total})
