"""Check for updates that have no gradient to apply."""

from __future__ import annotations

from collections.abc import Iterator

from probe.core.checks.check import CheckFinding, JudgedUpdate
from probe.core.checks.loop_check import FactCheck
from probe.core.checks.places import ancestors, listing
from probe.core.checks.streak import Streak
from probe.core.checks.update_facts import is_any
from probe.core.language import message

UPDATES = 3
CLEARED = message("they were cleared between the backward and the update")


class NothingToApply(FactCheck):
    """Report an optimizer none of whose parameters has a gradient, in three applied updates in a row.

    It is a fact only with one of the causes: the gradients go to parameters that no optimizer has, a backward has
    computed some that were cleared before the update, or no backward reaches its parameters, of the only optimizer or
    of one whose turn it is: each has a backward of its own. An optimizer of a part that is frozen for a while, beside
    another one, has none of them. Gradients that are all exactly zero count as none if they were written after the
    backward of a loss that is not zero.
    """

    name = "nothing-to-apply"
    grade = "critical"
    title = "Update without gradients"
    why = "The optimizer runs and changes nothing; the loss may still fall by what other parts learn."
    source = "https://discuss.pytorch.org/t/84911"
    sees = "gradients that are there at the update, backwards since the last one, and parameters outside of optimizers"
    remedy = (
        "Give the optimizer the parameters that require a gradient, let the loss depend on them without detach() or "
        "item(), and clear gradients before the backward."
    )

    def __init__(self) -> None:
        super().__init__()
        self._streak = Streak(UPDATES)
        self._causes: set[str] = set()

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        facts = update.facts
        if facts.outcome != "applied" or not facts.names:
            return
        self.judged = True
        if is_any(facts.gradients.there):
            cause: str | None = CLEARED if _were_cleared(update) else None
        else:
            moved = facts.values is not None and is_any(facts.values.moved)
            cause = None if moved else self._cause(update)
        if self._streak.completes(cause is not None, facts.step):
            where = ancestors(facts.strangers, facts.strangers)
            text = message(
                "none of the {number} parameters of the optimizer has a gradient at its updates: {cause}",
                number=len(facts.names),
                cause=cause,
            )
            evidence = {"parameters": len(facts.names), "strangers": len(facts.strangers)}
            yield self.finding(facts, self._streak.since, text, {**evidence, "backwards": facts.backwards}, where)

    def _cause(self, update: JudgedUpdate) -> str | None:
        facts = update.facts
        if facts.strangers:
            places = listing(facts.strangers)
            return message("the backward reaches others, which no optimizer has ({places})", places=places)
        if facts.backwards:
            return CLEARED
        return message("no backward reaches them") if facts.alone or facts.in_turn else None


def _were_cleared(update: JudgedUpdate) -> bool:
    """Return whether all gradients are exactly zero, though the loss is not, and were written after its backward."""
    facts = update.facts
    lost = facts.backwards > 0 and facts.rewritten and facts.loss_seen and bool(facts.loss)
    return lost and update.norms is not None and 1 not in update.pattern
