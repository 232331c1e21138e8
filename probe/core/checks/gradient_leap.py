"""Check for leaps of the norm of the gradients."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from math import exp, isfinite

import numpy as np

from probe.core.checks.check import CheckFinding, JudgedUpdate
from probe.core.checks.leap import LeapMemory
from probe.core.checks.loop_check import ChangeCheck, norms_of, total_norm
from probe.core.checks.loss_leap import series_of

RISE = 4.0
"""Robust standard deviations above its median at which a loss has leapt as well."""
RECENT = 24
"""Latest losses that are compared with."""


class GradientLeap(ChangeCheck):
    """Report that the norm of all gradients leaps above all that the run has had.

    It comes back at once, or goes on rising. A leap is eight robust standard deviations of the latest 50 logarithms,
    three times the largest deviation among them, and a factor of four. If the loss is high as well, as with a batch of
    rubbish, it must come back: else harder data have come.
    """

    name = "gradient-leap"
    title = "Gradient leaps"
    source = "https://arxiv.org/abs/2604.00726"
    sees = "norms of the gradients at each update, before clipping"
    remedy = "Compare with other ranks, and with the step computed again: if it does not repeat, a device is faulty."
    lacks = "fewer than 20 norms of the same gradients could be read"

    def __init__(self) -> None:
        super().__init__()
        self._memory = LeapMemory(logarithmic=True)
        self._losses: deque[tuple[int, float]] = deque(maxlen=RECENT)

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        facts, norms = update.facts, norms_of(update)
        if facts.outcome == "skipped" or norms is None:
            return
        if isfinite(facts.loss):
            self._losses.append((facts.step, facts.loss))
        total = total_norm(norms)
        if not isfinite(total) or total <= 0:
            return
        leap = self._memory.judge(series_of(update), total, facts.step)
        self.judged = self.judged or self._memory.ready
        if leap is None or leap.course == "stayed":
            return
        with_loss = self._loss_leapt(leap.since)
        if with_loss and leap.course != "returned":
            return
        places = np.argsort(np.nan_to_num(norms))[::-1][:1]
        text = (
            f"the norm of all gradients has leapt to {exp(leap.value):.4g} at step {leap.since}, and the loss "
            f"{'with it' if with_loss else 'has not'}; its median before is {exp(leap.median):.4g}"
        )
        where = tuple(filter(None, (facts.names[place] for place in places))) if leap.since == facts.step else ()
        evidence = {"norm": exp(leap.value), "median": exp(leap.median), "deviations": leap.deviations}
        yield self.finding(facts, leap.since, text, evidence, where)

    def _loss_leapt(self, since: int) -> bool:
        """Return whether the loss is unusually high from that step on."""
        before = np.array([loss for step, loss in self._losses if step < since])
        after = [loss for step, loss in self._losses if step >= since]
        if len(before) < 5 or not after:
            return False
        middle = float(np.median(before))
        sigma = max(1.4826 * float(np.median(np.abs(before - middle))), 0.01 * abs(middle))
        return max(after) > middle + RISE * sigma
