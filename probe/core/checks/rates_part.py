"""Check for a schedule that reaches a part of the groups of an optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from math import isclose, isnan

from probe.core.checks.check import CheckFinding, JudgedUpdate, NotApplicable
from probe.core.checks.loop_check import FactCheck
from probe.core.language import message

CHANGES = 20
"""Updates that must have changed a rate."""
ALIKE = 0.05
"""Relative difference of the highest rates of groups that were given one rate."""


class RatesPart(FactCheck):
    """Report a group whose learning rate has never changed, while twenty updates have changed that of another one which
    was at the same height: the program sets the rate of its first group alone."""

    name = "rates-part"
    title = "Schedule of one group"
    why = "The other groups keep the rate that they began with, without warm-up and decay."
    source = "https://github.com/rasbt/LLMs-from-scratch/issues/692"
    sees = "learning rates of the optimizer's groups at each update"
    remedy = "Set the rate in each of optimizer.param_groups, or use a scheduler of the framework."
    lacks = NotApplicable("fewer than two groups with a schedule")

    def __init__(self) -> None:
        super().__init__()
        self._first: tuple[float, ...] = ()
        self._last: tuple[float, ...] = ()
        self._since = 0
        self._changes: list[int] = []
        self._highest: list[float] = []

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        facts, rates = update.facts, update.facts.rates
        if len(rates) < 2 or any(map(isnan, rates)):
            return
        if len(rates) != len(self._first):
            self._first = self._last = rates
            self._since, self._changes, self._highest = facts.step, [0] * len(rates), [0.0] * len(rates)
        if rates == self._last and max(self._changes) != CHANGES:
            return
        changed = [count + (rate != last) for count, rate, last in zip(self._changes, rates, self._last, strict=True)]
        self._highest = [max(pair) for pair in zip(self._highest, self._last, rates, strict=True)]
        self._last, before, self._changes = rates, max(self._changes), changed
        self.judged = max(changed) >= CHANGES
        if max(changed) != CHANGES or before == CHANGES:
            return
        still = [number for number, count in enumerate(changed) if not count]
        moving = [height for height, count in zip(self._highest, changed, strict=True) if count]
        wrong = [n for n in still if any(isclose(self._highest[n], height, rel_tol=ALIKE) for height in moving)]
        if wrong:
            text = message(
                "the learning rate of group {group} stays at {rate:.3g}, where that of another has changed {number} "
                "times and reached as much",
                group=wrong[0],
                rate=rates[wrong[0]],
                number=CHANGES,
            )
            yield self.finding(facts, self._since, text, {"rate": rates[wrong[0]], "changes": CHANGES})
