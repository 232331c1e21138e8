"""Check for frozen parameters that updates move."""

from __future__ import annotations

from collections.abc import Iterator

from probe.core.checks.check import CheckFinding, JudgedUpdate
from probe.core.checks.loop_check import FactCheck
from probe.core.checks.places import ancestors, listing
from probe.core.checks.streak import Streak
from probe.core.checks.update_facts import is_any
from probe.core.language import message

UPDATES = 3


class FrozenMoves(FactCheck):
    """Report parameters that require no gradient, hold one, and are moved by three updates in a row: gradients of
    before they were frozen, or zeros, with momentum or weight decay."""

    name = "frozen-moves"
    title = "Frozen, and moving"
    why = "Parameters that were to stay are moved, by old gradients, momentum or weight decay."
    source = "https://github.com/facebookresearch/fairseq/issues/4702"
    sees = "gradients that are there at each update, what requires one, and numbers before and after it"
    remedy = "Set grad to None as you freeze a parameter, or leave frozen parameters out of the optimizer."

    def __init__(self) -> None:
        super().__init__()
        self._streak = Streak(UPDATES)

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        facts, values = update.facts, update.facts.values
        if not facts.shown or not is_any(facts.trainable):
            return
        self.judged = True
        frozen = facts.gradients.there & ~facts.trainable
        moved = [] if values is None else values.looked[values.moved & frozen[values.looked]].tolist()
        if self._streak.completes(bool(moved), facts.step):
            where = ancestors([facts.names[n] for n in moved], facts.names)
            text = message(
                "{places} require no gradient, and updates move them: they hold gradients still", places=listing(where)
            )
            yield self.finding(facts, self._streak.since, text, {"parameters": len(moved)}, where)
