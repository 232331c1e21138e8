"""Check for gradients of micro batches that are cleared before any update has applied them."""

from __future__ import annotations

from collections.abc import Iterator

from probe.core.checks.check import CheckFinding, JudgedUpdate, NotApplicable
from probe.core.checks.loop_check import FactCheck
from probe.core.checks.streak import Streak
from probe.core.language import message

UPDATES = 3


class GradientsDiscarded(FactCheck):
    """Report backwards whose gradients are cleared, and applied by no update, in three updates in a row.

    The program must have one optimizer, and apply just what the last backward has left. Backwards for the sake of
    something else are left out: adversarial inputs and whatever else is no parameter get a gradient from them, and
    searches such as SAM write the parameters between them.
    """

    name = "gradients-discarded"
    title = "Gradients are discarded"
    why = "Most of the work is lost: each update is that of the last micro batch alone, at a fraction of its size."
    source = "https://github.com/pytorch/torchtitan/pull/3575"
    sees = "backwards, gradients that are gone before the next one, and the leaves in the graph of a loss now and then"
    remedy = "Call optimizer.zero_grad() once an update, before its first backward, and not for each micro batch."
    lacks = NotApplicable("no gradient was cleared between two backwards of an update")

    def __init__(self) -> None:
        super().__init__()
        self._streak = Streak(UPDATES)

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        facts = update.facts
        self.judged |= facts.discarded > 0
        holds = facts.discarded > 0 and facts.alone and bool(facts.uses) and not facts.inputs_learn
        if self._streak.completes(holds, facts.step):
            number = facts.discarded + facts.backwards
            text = message(
                "the gradients of {discarded} of {number} backwards are cleared before the update, in {updates} "
                "updates in a row",
                discarded=facts.discarded,
                number=number,
                updates=UPDATES,
            )
            evidence = {"discarded": facts.discarded, "backwards": number}
            yield self.finding(facts, self._streak.since, text, evidence)
