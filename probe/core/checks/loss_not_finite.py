"""Check for a loss that is not finite."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite

from probe.core.checks.check import CheckFinding, JudgedUpdate
from probe.core.checks.loop_check import FactCheck
from probe.core.language import joined, message


class LossNotFinite(FactCheck):
    """Report a loss that is NaN or Inf, also where a gradient scaler has skipped its update."""

    name = "loss-not-finite"
    grade = "critical"
    title = "Loss not finite"
    why = "From then on every gradient is NaN, and the first update writes it into all weights."
    source = "https://github.com/facebookresearch/metaseq/tree/main/projects/OPT/chronicles"
    sees = "the root of each backward, as soon as its value is on the host"
    remedy = "Find the first module whose output is not finite, and the batch of this step."
    lacks = "no loss was seen"

    def __init__(self) -> None:
        super().__init__()
        self._finite = True

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        facts = update.facts
        if not facts.loss_seen:
            return
        self.judged = True
        finite, before = isfinite(facts.loss), self._finite
        self._finite = finite
        if not finite and before:
            text, where = message("the loss is {value}", value=facts.loss), tuple[str, ...]()
            if (beginning := facts.beginning) is not None:
                text, where = joined(": ", [text, beginning.clause()]), beginning.where()
            yield self.finding(facts, facts.step, text, {"loss": facts.loss}, where)
