"""Check for a model that is called around the wrapper that averages its gradients."""

from __future__ import annotations

from collections.abc import Iterator

from probe.core.checks.check import CheckFinding, JudgedUpdate, NotApplicable
from probe.core.checks.loop_check import FactCheck
from probe.core.checks.streak import Streak

UPDATES = 2


class WrapperBypassed(FactCheck):
    """Report backwards that reach the parameters though the wrapper's forward was not called, at two updates in a
    row."""

    name = "wrapper-bypassed"
    title = "Wrapper bypassed"
    source = "https://github.com/huggingface/trl/issues/7245"
    sees = "the order of the wrapper's forward and of the backward"
    remedy = "Call the wrapper itself, not its module: only its forward prepares the reduction of the gradients."
    lacks = NotApplicable("no wrapper averages gradients over ranks")

    def __init__(self) -> None:
        super().__init__()
        self._streak = Streak(UPDATES)

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        facts = update.facts
        if facts.reduced is None and not facts.around:
            return
        self.judged = True
        if self._streak.completes(facts.around, facts.step):
            text = (
                f"a backward reached the parameters without a forward of their data-parallel wrapper, at {UPDATES} "
                "updates in a row: gradients are not averaged, each rank trains by itself"
            )
            yield self.finding(facts, self._streak.since, text, {"backwards": facts.backwards})
