"""Check for updates that change nothing."""

from __future__ import annotations

from collections.abc import Iterator
from math import isnan

from probe.core.checks.check import CheckFinding, Grade, JudgedUpdate
from probe.core.checks.loop_check import FactCheck
from probe.core.checks.step_size import step_sizes
from probe.core.checks.update_facts import is_any
from probe.core.language import joined, message

UPDATES = 5
LOOKED = 3
"""Parameters that must have been looked at."""
LEAST_STEP = 1e-9
"""Size of an update that must be seen in some element."""
LEAST_RATE = 1e-4
"""Share of the highest learning rate so far below which a schedule has ended."""
LEAST_NORM = 1e-2
"""Share of the largest gradient of updates that moved something below which the training has converged."""

STOPPED = message("the optimizer decides itself how far it goes, and may have ended its search")


class NothingMoves(FactCheck):
    """Report that no parameter that was looked at has changed in five applied updates in a row.

    Only parameters with a gradient count, at a learning rate that is not at the end of its schedule, and with a
    gradient that is not one of a minimum: LBFGS and the like stop there by design. Of an optimizer that searches, it is
    a note once updates have moved something: it has found nothing better.
    """

    name = "nothing-moves"
    grade = "critical"
    title = "Nothing moves"
    why = "The run takes its time and learns nothing."
    source = "https://github.com/pytorch/xla/issues/1623"
    sees = "numbers of a part of the parameters before and after each update, rates and norms of gradients"
    remedy = (
        "Make the optimizer after the model is moved, wrapped or resized, let it hold the very parameters of the "
        "model, and check that its learning rate is not far too small."
    )

    lacks = "no parameter with a gradient could be looked at around an update"

    def __init__(self) -> None:
        super().__init__()
        self._count, self._since, self._reported = 0, -1, False
        self._looked: set[int] = set()
        self._highest_rate = self._highest_norm = 0.0

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        facts, norms, total = update.facts, update.norms, update.total
        if facts.outcome != "applied" or facts.values is None or norms is None or not len(facts.values.looked):
            return
        rate = max((rate for rate in facts.rates if not isnan(rate)), default=0.0)
        self._highest_rate = max(self._highest_rate, rate)
        if is_any(facts.values.moved):
            self.judged = True
            self._highest_norm = max(self._highest_norm, total)
            self._count, self._reported = 0, False
            self._looked.clear()
            return
        looked = facts.values.looked
        driven = looked[step_sizes(facts, norms)[looked] >= LEAST_STEP]
        if not len(driven) or rate < LEAST_RATE * self._highest_rate or total < LEAST_NORM * self._highest_norm:
            return
        self.judged = True
        self._since = self._since if self._count else facts.step
        self._count += 1
        self._looked.update(driven.tolist())
        enough = min(LOOKED, int((norms > 0).sum()))
        if self._count >= UPDATES and len(self._looked) >= enough and not self._reported:
            self._reported = True
            number = len(self._looked)
            text = message(
                "none of {number} parameters that were looked at has changed in {count} updates in a row, though "
                "the learning rate is {rate:.3g} and their gradients are not zero",
                number=number,
                count=self._count,
                rate=rate,
            )
            stopped = facts.searches and self._highest_norm > 0
            text = joined("; ", [text, STOPPED]) if stopped else text
            grade: Grade = "note" if stopped else self.grade
            yield self.finding(facts, self._since, text, {"rate": rate, "looked": number, "norm": total}, grade=grade)
