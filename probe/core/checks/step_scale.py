"""Check for updates that are out of proportion to the parameters that they change."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite

import numpy as np

from probe.core.checks.check import CheckFinding, JudgedUpdate
from probe.core.checks.loop_check import FactCheck
from probe.core.checks.step_size import step_sizes
from probe.core.checks.streak import Streak
from probe.core.language import message

LARGE, SMALL = 0.5, 1e-6
"""Sizes of an update relative to the weights: usual ones are a ten-thousandth to a twentieth."""
UPDATES_LARGE, UPDATES_SMALL = 10, 60
"""Updates in a row."""
FIRST = 100
"""Updates that are judged: later, gradients may have faded, and weights may have shrunk."""
LEAST = 64
"""Elements of a weight, at least."""
RISE = 1e-3
"""Relative rise of a rate that is a warm-up."""


class StepScale(FactCheck):
    """Report a beginning in which updates change half of the weights by more than half of their size, ten times in a
    row, or by less than a millionth, sixty times in a row and not in a warm-up.

    The size follows from rate, gradient and kind of the optimizer, and is that of the median weight. Where that is not
    how an optimizer works (Adadelta), the least and the greatest number of the weights move otherwise.
    """

    name = "step-out-of-scale"
    title = "Steps out of scale"
    why = "The learning rate is far too high, and the loss swings, or far too low, and nothing is learnt."
    source = "https://doi.org/10.1109/ICSE43902.2021.00043"
    sees = "rates, norms of the gradients and of a part of the parameters at the first updates"
    remedy = "Try rates ten times lower or higher; an update changes weights by about a thousandth of their size."
    lacks = "no norm of a parameter could be read"

    def __init__(self) -> None:
        super().__init__()
        self._updates, self._rate = 0, 0.0
        self._large, self._small = Streak(UPDATES_LARGE), Streak(UPDATES_SMALL)

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        facts, values, norms = update.facts, update.facts.values, update.norms
        if self._updates == FIRST or facts.outcome == "skipped" or values is None or norms is None or facts.searches:
            return
        if values.numbers is None or len(facts.sizes) != len(facts.names):
            return
        self._updates += 1
        sizes = np.array(facts.sizes)[values.looked]
        rms = values.numbers()[:, 0] / np.sqrt(np.maximum(sizes, 1))
        steps = step_sizes(facts, norms)[values.looked]
        weights = (sizes >= LEAST) & (steps > 0) & (rms > 0)
        if not weights.any():
            return
        self.judged = True
        ratio, rate, before = float(np.median(steps[weights] / rms[weights])), max(facts.rates), self._rate
        seen = ratio if values.shifts is None else float(np.median(values.shifts()[weights] / rms[weights]))
        self._rate = rate
        evidence = {"rate": rate, "relative size": ratio}
        if self._large.completes(isfinite(ratio) and min(ratio, 2 * seen) > LARGE, facts.step):
            text = message(
                "each update changes weights by {ratio:.3g} times their size: the learning rate of {rate:.3g} is far "
                "too high",
                ratio=ratio,
                rate=rate,
            )
            yield self.finding(facts, self._large.since, text, evidence)
        if self._small.completes(max(ratio, seen) < SMALL and rate <= before * (1 + RISE), facts.step):
            text = message(
                "{number} updates have each changed weights by {ratio:.3g} times their size: the learning rate of "
                "{rate:.3g} is far too low",
                number=UPDATES_SMALL,
                ratio=ratio,
                rate=rate,
            )
            yield self.finding(facts, self._small.since, text, evidence)
