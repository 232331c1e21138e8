"""Check for trainable parameters without a gradient."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from probe.core.checks.check import CheckClass, CheckFinding, Grade, JudgedUpdate
from probe.core.checks.loop_check import FactCheck, UnusualCheck
from probe.core.checks.places import ancestors, listing
from probe.core.checks.update_facts import Mask, UpdateFacts
from probe.core.language import message

UPDATES = 3
MUCH, HALF = 0.2, 0.5
"""Part of the elements that are trained, and of the parameters."""


class NoGradient(UnusualCheck):
    """Note parameters of the optimizer that require a gradient, and have none in its first three updates.

    Unused parts do so, such as the pooler of a language model, or the heads of other tasks. If it is most of the model,
    the loss may not depend on it.
    """

    name = "no-gradient"
    title = "Without gradient"
    why = "These parameters cost memory and are not trained; more of the loss may be cut off than was meant."
    source = "https://github.com/huggingface/transformers/issues/21381"
    sees = "gradients that are there at each update, and what requires one"
    remedy = "Freeze what the loss does not use; otherwise look for detach(), no_grad() and reentrant checkpointing."
    lacks = f"fewer than {UPDATES} updates"

    def __init__(self) -> None:
        super().__init__()
        self._updates, self._since = 0, -1
        self._without: Mask = np.zeros(0, dtype=np.bool_)

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        facts = update.facts
        if self._updates == UPDATES or facts.outcome == "skipped":
            return
        without = facts.trainable & ~facts.gradients.there
        if not self._updates or len(without) != len(self._without):
            self._updates, self._since, self._without = 0, facts.step, np.ones_like(without)
        self._without = self._without & without
        self._updates += 1
        if self._updates < UPDATES:
            return
        self.judged = True
        number, total = int(self._without.sum()), int(facts.trainable.sum())
        if number and self.counts(facts, self._without):
            names = [name for name, lacks in zip(facts.names, self._without, strict=True) if lacks]
            where = ancestors(names, facts.names)
            text = message(
                "{number} of {total} parameters have no gradient in the first {updates} updates: {places}",
                number=number,
                total=total,
                updates=UPDATES,
                places=listing(where),
            )
            yield self.finding(facts, self._since, text, {"parameters": number, "all": total}, where)

    @classmethod
    def counts(cls, facts: UpdateFacts, without: Mask) -> bool:  # noqa: ARG003 - as of a beginning
        """Return whether such parameters are a finding."""
        return True


class BeginningCut(NoGradient, FactCheck):
    """Report a model whose first parameters, and half of all or a fifth of their elements, require a gradient, are in
    the optimizer, and have no gradient in its first three updates: something behind them has cut the graph."""

    name = "beginning-cut"
    kind: ClassVar[CheckClass] = "fact"
    grade: ClassVar[Grade] = "warning"
    title = "Beginning has no gradient"
    why = "The first layers stay as they were initialised, and the rest learns from what they happen to return."
    remedy = "Look for detach(), data, no_grad() and new tensors behind them; freeze what is not to be trained."

    @classmethod
    def counts(cls, facts: UpdateFacts, without: Mask) -> bool:
        """Return whether such parameters are the first, and many."""
        sizes = np.array(facts.sizes or [1] * len(without))
        trained = facts.trainable & ~without
        is_first = bool(trained.any()) and int(without.argmax()) < int(trained.argmax())
        is_much = sizes[without].sum() >= MUCH * sizes[facts.trainable].sum()
        return not facts.cut and is_first and bool(is_much or without.sum() >= HALF * facts.trainable.sum())
