"""Check for clipping of gradients that still have a loss scaler's factor."""

from __future__ import annotations

from collections.abc import Iterator

from probe.core.checks.check import CheckFinding, JudgedUpdate
from probe.core.checks.loop_check import FactCheck
from probe.core.checks.streak import Share
from probe.core.language import message

UPDATES, LATEST = 2, 3


class ClipBeforeUnscale(FactCheck):
    """Report that the norm to clip by was computed before the gradients were unscaled."""

    name = "clip-before-unscale"
    title = "Clipped before unscaling"
    why = "The limit is thousands of times too small, and the updates nearly vanish."
    source = "https://github.com/Lightning-AI/pytorch-lightning/issues/9599"
    sees = "the order of the calls to unscale and to clip at each update"
    remedy = "Call scaler.unscale_(optimizer) before the gradients are clipped."

    def __init__(self) -> None:
        super().__init__()
        self._share = Share(UPDATES, LATEST)

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        facts = update.facts
        self.judged = True
        if self._share.completes(facts.scaled, facts.step):
            text = message(
                "gradients were clipped while they had the factor of the loss scaler, in {updates} of the last "
                "{latest} updates: they are clipped far below the norm that was asked for",
                updates=UPDATES,
                latest=LATEST,
            )
            evidence = {} if facts.clip != facts.clip else {"clip": facts.clip}
            yield self.finding(facts, self._share.since, text, evidence)
