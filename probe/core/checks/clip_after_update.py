"""Check for clipping of gradients after the update that applied them."""

from __future__ import annotations

from collections.abc import Iterator

from probe.core.checks.check import CheckFinding, JudgedUpdate
from probe.core.checks.loop_check import FactCheck
from probe.core.checks.streak import Share
from probe.core.language import message

UPDATES, LATEST = 3, 8


class ClipAfterUpdate(FactCheck):
    """Report that gradients are clipped after the update has applied them as they were.

    A total norm that is only measured there, with no limit or one that is not reached, changes nothing.
    """

    name = "clip-after-update"
    title = "Clipped after the update"
    why = "The limit protects nothing: the first large gradient is applied as it is."
    source = "https://discuss.pytorch.org/t/proper-way-to-do-gradient-clipping/191"
    sees = "the order of updates, backwards and calls to clip, and the versions of the gradients"
    remedy = "Clip between the backward and the optimizer's step."

    def __init__(self) -> None:
        super().__init__()
        self._share = Share(UPDATES, LATEST)

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        facts = update.facts
        self.judged = True
        if self._share.completes(facts.clipped_late and facts.clip == 1, facts.step):
            text = message(
                "in {updates} of the last {latest} updates the gradients of the update before were clipped after it "
                "had applied them: the clipping has no effect",
                updates=UPDATES,
                latest=LATEST,
            )
            yield self.finding(facts, self._share.since, text, {"updates": UPDATES})
