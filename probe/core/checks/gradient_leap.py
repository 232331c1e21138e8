"""Check for leaps of the norm of the gradients."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from math import exp, isfinite

import numpy as np

from probe.core.checks.check import CheckFinding, JudgedUpdate
from probe.core.checks.leap import PATIENCE, Leap, LeapMemory
from probe.core.checks.loop_check import ChangeCheck
from probe.core.robust import MAD_TO_SIGMA

RISE = 4.0
"""Robust standard deviations above its median at which a loss is higher than usual."""
RECENT = 24
"""Latest losses that are compared with."""
FEWEST = 5
"""Losses that are enough for that."""


class GradientLeap(ChangeCheck):
    """Report that the norm of all gradients leaps above all that the run has had, and comes back or goes on rising.

    A leap is twelve robust standard deviations of the latest 50 logarithms, three times the largest deviation among
    them, and a factor of four. If the loss is higher than usual as well and stays so, the data or the task are others,
    as at the next stage of a curriculum: that is no finding.
    """

    name = "gradient-leap"
    title = "Gradient leaps"
    why = "One such gradient undoes many updates, or fills the optimizer's moments for thousands of steps."
    source = "https://arxiv.org/abs/2604.00726"
    sees = "norms of the gradients at each update, before clipping, and the loss where it is known on the host"
    remedy = (
        "Look at the batch of this step; if it is as others, compare with other ranks, and with the step computed "
        "again: if the leap does not repeat, a device is faulty."
    )
    lacks = "fewer than 20 norms of the same gradients could be read"

    def __init__(self) -> None:
        super().__init__()
        self._memory = LeapMemory(logarithmic=True)
        self._losses: deque[tuple[int, float]] = deque(maxlen=RECENT)
        self._leap: Leap | None = None
        """Leap whose loss has not come back yet."""
        self._waited = 0

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        facts, total = update.facts, update.total
        if facts.outcome == "skipped" or update.norms is None:
            return
        if isfinite(facts.loss):
            self._losses.append((facts.step, facts.loss))
        if isfinite(total) and total > 0:
            leap = self._memory.judge((facts.backwards, update.pattern), total, facts.step)
            self.judged = self.judged or self._memory.ready
            if leap is not None and leap.course != "stayed":
                self._leap, self._waited = leap, 0
        if self._leap is not None:
            yield from self._decide(update, self._leap)

    def _decide(self, update: JudgedUpdate, leap: Leap) -> Iterator[CheckFinding]:
        """Report a leap unless the loss has leapt, too, and is still higher than usual."""
        before = np.array([loss for step, loss in self._losses if step < leap.since])
        self._waited += 1
        if leap.course == "returned" and self._losses and len(before) >= FEWEST:
            middle = float(np.median(before))
            sigma = max(MAD_TO_SIGMA * float(np.median(np.abs(before - middle))), 0.01 * abs(middle))
            if self._losses[-1][1] > middle + RISE * sigma:
                if self._waited > PATIENCE:
                    self._leap = None
                return
        self._leap = None
        course = "has come back" if leap.course == "returned" else "goes on rising"
        text = (
            f"the norm of all gradients has leapt to {exp(leap.value):.4g} at step {leap.since} and {course}; its "
            f"median before is {exp(leap.median):.4g}"
        )
        evidence = {"norm": exp(leap.value), "median": exp(leap.median), "deviations": leap.deviations}
        yield self.finding(update.facts, leap.since, text, evidence)
