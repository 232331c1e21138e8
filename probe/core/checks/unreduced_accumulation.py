"""Check for updates whose gradients were not averaged over ranks."""

from __future__ import annotations

from collections.abc import Iterator

from probe.core.checks.check import CheckFinding, JudgedUpdate, NotApplicable
from probe.core.checks.loop_check import FactCheck
from probe.core.checks.streak import Streak
from probe.core.language import message

UPDATES = 2


class UnreducedAccumulation(FactCheck):
    """Report that the wrapper did not average the gradients in the last backward before two updates in a row."""

    name = "unreduced-accumulation"
    title = "Gradients not averaged"
    why = "Each rank applies its own gradient, and the replicas drift apart without an error."
    source = "https://github.com/modelscope/FunASR/pull/3472"
    sees = "whether the data-parallel wrapper reduces in the last backward before each update"
    remedy = "Leave no_sync() for the forward and the backward of the last micro batch before the update."
    lacks = NotApplicable("no wrapper averages gradients over ranks")

    def __init__(self) -> None:
        super().__init__()
        self._streak = Streak(UPDATES)

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        facts = update.facts
        if facts.reduced is None or facts.outcome == "skipped":
            return
        self.judged = True
        if self._streak.completes(not facts.reduced, facts.step):
            text = message(
                "the gradients of {updates} updates in a row were not averaged with those of other ranks in the "
                "last backward: each rank trains by itself",
                updates=UPDATES,
            )
            yield self.finding(facts, self._streak.since, text, {"backwards": facts.backwards})
