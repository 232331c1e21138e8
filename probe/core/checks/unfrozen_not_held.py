"""Check for parameters that begin to have a gradient and are in no optimizer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from probe.core.checks.check import CheckFinding, JudgedUpdate
from probe.core.checks.loop_check import ChangeCheck
from probe.core.checks.places import ancestors, listing
from probe.core.language import message

FIRST, UPDATES = 3, 3


class UnfrozenNotHeld(ChangeCheck):
    """Report parameters that had no gradient in the first updates, have one in three in a row, and are in no
    optimizer."""

    name = "unfrozen-not-held"
    title = "Unfrozen, not in optimizer"
    why = "The layers that were unfrozen get gradients and are never updated."
    source = "https://github.com/fastai/fastai/issues/2133"
    sees = "parameters of the models that have a gradient at each update, and those that optimizers hold"
    remedy = "Add the parameters that you unfreeze with optimizer.add_param_group(), or make the optimizer anew."

    def __init__(self) -> None:
        super().__init__()
        self._updates = 0
        self._first: set[str] = set()
        self._counts: Counter[str] = Counter()
        self._since = -1

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        facts = update.facts
        self._updates += 1
        if self._updates <= FIRST:
            self._first.update(facts.strangers)
            return
        self.judged = True
        fresh = [name for name in facts.strangers if name not in self._first] if facts.strangers else []
        if not fresh:
            self._counts.clear()
            return
        self._since = self._since if self._counts else facts.step
        self._counts = Counter({name: self._counts[name] + 1 for name in fresh})
        names = [name for name, count in self._counts.items() if count >= UPDATES]
        if names:
            self._first.update(names)
            where = ancestors(names, (*facts.names, *facts.strangers))
            text = message(
                "{number} parameters have a gradient since step {since} and are in no optimizer: {places}",
                number=len(names),
                since=self._since,
                places=listing(where),
            )
            gradient_count = int(facts.gradients.there.sum())
            yield self.finding(facts, self._since, text, {"parameters": len(names), "held": gradient_count}, where)
