"""Check for modules whose inputs have become zero."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from probe.core.checks.check import CheckFinding, JudgedUpdate
from probe.core.checks.loop_check import ChangeCheck
from probe.core.checks.places import ancestors, listing, module_of
from probe.core.checks.update_facts import Mask, is_any
from probe.core.language import message

SOON = 8
"""Updates in a row in which the gradients are zero."""
ALWAYS = 20
"""Updates in a row, before these, in which they are not."""


class InputsZero(ChangeCheck):
    """Report modules whose weights have a gradient of exactly zero for eight updates in a row, while their bias has
    another one, after they had gradients in twenty updates in a row.

    The gradient of a weight is a product with the inputs, that of a bias is not: such inputs are all zero. Modules of
    which nothing has a gradient any more are a matter of ``gradient-gone``.
    """

    name = "inputs-zero"
    title = "Inputs are zero"
    why = "The module learns its bias, and nothing from its inputs."
    source = "https://github.com/pytorch/pytorch/issues/96600"
    sees = "norms of the gradients at each update, by module"
    remedy = "Look at the batches from this step on, and at what prepares and moves them; or at the layer before."
    lacks = "no module with a weight and a bias had a gradient"

    def __init__(self) -> None:
        super().__init__()
        self._names: tuple[str, ...] | None = None

    def _begin(self, names: tuple[str, ...]) -> None:
        """Forget all modules: there are others now."""
        self._names = names
        places = {module: place for place, module in enumerate(dict.fromkeys(map(module_of, names)))}
        self._module = np.array([places[module_of(name)] for name in names], dtype=np.int64)
        self._is_bias = np.array([name.endswith("bias") for name in names], dtype=np.bool_)
        self._lived, self._zero, self._since = (np.zeros(len(places), dtype=np.int64) for _ in range(3))
        self._alike, self._pattern = 0, b""
        """Updates like the last one, and its gradients that were not zero; empty if a module's inputs were."""

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        facts = update.facts
        if facts.outcome == "skipped" or update.norms is None or not is_any(facts.gradients.there):
            return
        if facts.names is not self._names and facts.names != self._names:
            self._begin(facts.names)
        if update.pattern == self._pattern:  # most updates are like the one before
            self._alike += 1
            return
        self._lived[self._lived > 0] += self._alike
        self._alike = 0
        present, alive = facts.gradients.there, np.frombuffer(update.pattern, np.bool_)
        weights, biases = (self._any(alive & kind) for kind in (~self._is_bias, self._is_bias))
        zero = self._any(present & ~self._is_bias) & ~weights & biases
        self.judged |= bool((weights & biases).any())
        self._lived = np.where(weights, np.where(self._zero > 0, 1, self._lived + 1), self._lived)
        self._since = np.where(zero & (self._zero == 0), facts.step, self._since)
        self._zero = np.where(zero, self._zero + 1, 0)
        self._pattern = b"" if zero.any() else update.pattern
        starved = (self._zero == SOON) & (self._lived >= ALWAYS)
        if starved.any():
            names = [name for name, module in zip(facts.names, self._module, strict=True) if starved[module]]
            where = ancestors(names, facts.names)
            since = int(self._since[starved].min())
            text = message(
                "the inputs of {places} are all 0 in {updates} updates in a row, and were not so before step {since}: "
                "the gradients of its weights are exactly 0, those of its bias are not",
                places=listing(where),
                updates=SOON,
                since=since,
            )
            yield self.finding(facts, since, text, {"modules": int(starved.sum()), "updates": SOON}, where)

    def _any(self, mask: Mask) -> Mask:
        """Return for each module whether any of its parameters is chosen."""
        return np.bincount(self._module[mask], minlength=len(self._since)) > 0
