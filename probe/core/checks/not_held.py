"""Checks for parameters that have a gradient and are in no optimizer from the beginning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from probe.core.checks.check import CheckClass, CheckFinding, Grade, JudgedUpdate
from probe.core.checks.loop_check import FactCheck, UnusualCheck
from probe.core.checks.places import ancestors, listing, module_of
from probe.core.checks.update_facts import UpdateFacts
from probe.core.language import message

UPDATES = 3


class NotHeld(UnusualCheck):
    """Note parameters that have a gradient in each of the first three updates, and are in no optimizer.

    Programs that train a part do so, though they need not compute these gradients.
    """

    name = "not-held"
    title = "In no optimizer"
    why = "These gradients are computed and never applied."
    source = "https://github.com/mosaicml/composer/issues/1002"
    sees = "parameters of the models that have a gradient at each update, and those that optimizers hold"
    remedy = "Give them to an optimizer, or set requires_grad to False, which saves their gradients."
    lacks = f"fewer than {UPDATES} updates"

    def __init__(self) -> None:
        super().__init__()
        self._updates = 0
        self._names: set[str] = set()
        self._since = -1

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        facts = update.facts
        self._updates += 1
        if self._updates > UPDATES:
            return
        if self._updates == 1:
            self._names, self._since = set(facts.strangers), facts.step
        self._names.intersection_update(facts.strangers)
        if self._updates < UPDATES:
            return
        self.judged = True
        names = [name for name in facts.strangers if name in self._names]
        if names and self.counts(facts, names):
            total = len(names) + int(facts.gradients.there.sum())
            where = ancestors(names, (*facts.names, *facts.strangers))
            text = message(
                "{number} of {total} parameters that have a gradient are in no optimizer: {places}",
                number=len(names),
                total=total,
                places=listing(where),
            )
            yield self.finding(facts, self._since, text, {"parameters": len(names), "all": total}, where)

    @classmethod
    def counts(cls, facts: UpdateFacts, names: list[str]) -> bool:  # noqa: ARG003 - as of what is forgotten
        """Return whether such parameters are a finding."""
        return True


class Forgotten(NotHeld, FactCheck):
    """Report parameters that have a gradient in each of the first three updates and are in no optimizer, though the
    optimizer has others that lie before them: a head without optimizer, or biases whose weights have one.

    Programs that train a part by intention train the end of a model, or less than they leave out. Ranks without a
    wrapper may divide the parameters among their optimizers, and are left out.
    """

    name = "parameters-forgotten"
    kind: ClassVar[CheckClass] = "fact"
    grade: ClassVar[Grade] = "warning"
    title = "Forgotten by the optimizer"
    why = "These parameters stay as they were initialised, and what lies before them adapts to that."
    source = "https://github.com/ultralytics/ultralytics/pull/2855"

    @classmethod
    def counts(cls, facts: UpdateFacts, names: list[str]) -> bool:
        """Return whether parameters lie behind some that the optimizer has, and are biases of these or no more."""
        if facts.world > 1 and facts.reduced is None:
            return False
        owned = [name for name in facts.names if name in facts.uses]
        orders = [facts.uses[name].order for name in names if name in facts.uses]
        if not owned or not orders or min(facts.uses[name].order for name in owned) >= max(orders):
            return False
        weights = {module_of(name) for name in facts.names if name.endswith(".weight")}
        halves = any(name.endswith(".bias") and module_of(name) in weights for name in names)
        return halves or len(names) <= len(owned)
