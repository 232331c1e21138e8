"""Check for parameters that several optimizers update."""

from __future__ import annotations

from collections.abc import Iterator

from probe.core.checks.check import CheckFinding, JudgedUpdate, NotApplicable
from probe.core.checks.loop_check import UnusualCheck
from probe.core.checks.places import ancestors, listing
from probe.core.language import message


class HeldTwice(UnusualCheck):
    """Note parameters that are in several optimizers: each applies the same gradient, and weight decay, once more.

    Programs that alternate between objectives share a part of the model so.
    """

    name = "held-twice"
    title = "In two optimizers"
    why = "The parameter moves twice in each step, with two sets of moments."
    source = "https://pytorch.org/docs/stable/optim.html#per-parameter-options"
    sees = "parameters that the optimizers hold, by identity"
    remedy = "Give each parameter to one optimizer, unless they are updated in turn by intention."

    def __init__(self) -> None:
        super().__init__()
        self._reported: tuple[str, ...] = ()
        self._alone = True

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        facts = update.facts
        self.judged = True
        self._alone &= facts.alone
        if facts.shared and facts.shared != self._reported:
            self._reported = facts.shared
            where = ancestors(facts.shared, (*facts.names, *facts.shared))
            text = message(
                "{number} parameters are in more than one optimizer: {places}",
                number=len(facts.shared),
                places=listing(where),
            )
            yield self.finding(facts, facts.step, text, {"parameters": len(facts.shared)}, where)

    def missing(self) -> str | None:
        """Return why nothing could be judged so far; None if something was judged."""
        return NotApplicable("one optimizer") if self.judged and self._alone else super().missing()
