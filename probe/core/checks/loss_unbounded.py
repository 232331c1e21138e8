"""Check for a loss that falls without a bound."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, isfinite

from probe.core.checks.check import CheckFinding, JudgedUpdate
from probe.core.checks.loop_check import ChangeCheck
from probe.core.checks.streak import Streak
from probe.core.language import message

FIRST, TIMES, UPDATES = 20, 1000.0, 3
"""First losses, all of which are above zero; how far below it later ones are, in units of the greatest of these, at
least 1; and for how many updates in a row."""


class LossUnbounded(ChangeCheck):
    """Report a loss that begins above zero, and falls a thousand times as far below it: a term has the wrong sign, such
    as a Kullback-Leibler divergence. Of several optimizers, one may play against another, and none is judged."""

    name = "loss-unbounded"
    title = "Loss falls without bound"
    why = "The update raises a term that should be small, and the numbers of the model grow until none is finite."
    source = "https://github.com/wiseodd/generative-models/issues/43"
    sees = "the root of each backward, as soon as its value is on the host"
    remedy = "Look at the signs of the terms: a divergence, a distance and a penalty are added, and never below zero."
    lacks = "no loss was seen"

    def __init__(self) -> None:
        super().__init__()
        self._number, self._least, self._most = 0, inf, 1.0
        self._streak = Streak(UPDATES)

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        facts, loss = update.facts, update.facts.loss
        if not facts.loss_seen or not isfinite(loss):
            return
        self.judged = True
        if self._number < FIRST:
            self._number += 1
            self._least, self._most = min(self._least, loss), max(self._most, loss)
            return
        if self._streak.completes(facts.alone and self._least > 0 and loss < -TIMES * self._most, facts.step):
            text = message("the loss, at first above zero, is {loss:.3g}, and falls", loss=loss)
            yield self.finding(facts, self._streak.since, text, {"loss": loss, "first": self._most})
