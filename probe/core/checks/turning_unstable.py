"""Check for training that turns unstable: gradients leap while the loss rises."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from math import exp, isfinite, log
from typing import NamedTuple

import numpy as np

from probe.core.checks.check import CheckFinding, JudgedUpdate
from probe.core.checks.loop_check import ChangeCheck
from probe.core.language import message
from probe.core.robust import MAD_TO_SIGMA

WINDOW, LEAST = 50, 24
"""Updates that are compared with, at most and at least."""
TIMES = 5.0
"""Least factor by which the norm of all gradients exceeds its median."""
DEVIATIONS = 4.0
"""Least number of robust standard deviations (of logarithms) by which it exceeds its median."""
SPREAD = 0.02
"""Least value of a standard deviation, also of the loss as a part of its median."""
RISE = 2.0
"""Least number of robust standard deviations by which the loss exceeds its median."""
LEAP = 20.0
"""Largest such number: a loss that leaps further is that of another task or batch."""
EVEN = 0.25
"""Largest robust standard deviation of losses that are judged, relative to their median."""
PATIENCE = 10
"""Updates after a finding in which no other is reported."""


class _Rise(NamedTuple):
    """Loss and gradients of an update that are above those before."""

    norm: float
    median: float
    """Median of the norms."""
    deviations: float
    """Distance of the loss from its median, in robust standard deviations."""


class TurningUnstable(ChangeCheck):
    """Report that the norm of all gradients leaps in an update whose loss is above its usual range, too.

    Many divergences begin so, tens of updates before the loss itself leaps: a rate that is too high, too short a
    warm-up, an epsilon that is lost in rounding. The norm must be five times the median of the latest 50 and four
    robust standard deviations of their logarithms above it, while the loss is 2 to 20 above its median. Losses that are
    uneven or not above 0, as in reinforcement learning, are not judged.
    """

    name = "turning-unstable"
    title = "Turning unstable"
    why = "The loss leaps tens of updates later; a checkpoint and a lower rate help only before that."
    source = "https://arxiv.org/abs/2304.13013"
    sees = "norms of the gradients at each update, before clipping, and the loss where it is known on the host"
    remedy = (
        "Keep a checkpoint of now; then lower the learning rate, lengthen its warm-up or clip the gradients, and look "
        "at the latest batches."
    )
    lacks = "fewer than 24 updates with a loss and norms of the same gradients could be read"

    def __init__(self) -> None:
        super().__init__()
        self._key: Hashable = None
        self._norms: deque[float] = deque(maxlen=WINDOW)
        self._losses: deque[float] = deque(maxlen=WINDOW)
        self._quiet = PATIENCE

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        facts, norm = update.facts, update.total
        if facts.outcome == "skipped" or update.norms is None or not isfinite(facts.loss):
            return
        if not isfinite(norm) or norm <= 0:
            return
        key = facts.backwards, update.pattern
        if key != self._key:
            self._key = key
            self._norms.clear()
            self._losses.clear()
        self._quiet += 1
        if len(self._norms) >= LEAST:
            self.judged = True
            rise = self._rise(norm, facts.loss) if norm > TIMES * min(self._norms) else None  # mostly not, and quicker
            if rise is not None and self._quiet > PATIENCE:
                self._quiet = 0
                yield self._finding(update, rise)
        self._norms.append(norm)
        self._losses.append(facts.loss)

    def _rise(self, norm: float, loss: float) -> _Rise | None:
        """Return by how much an update is above those before; None if it is usual, or cannot be judged."""
        norms, losses = np.log(self._norms), np.array(self._losses)
        middle, level = float(np.median(norms)), float(np.median(losses))
        spread, scatter = (
            MAD_TO_SIGMA * float(np.median(np.abs(x - m))) for x, m in ((norms, middle), (losses, level))
        )
        if log(norm) - middle <= max(log(TIMES), DEVIATIONS * max(spread, SPREAD)):
            return None
        if level <= 0 or scatter > EVEN * level:
            return None
        deviations = (loss - level) / max(scatter, SPREAD * level)
        return _Rise(norm, exp(middle), deviations) if RISE < deviations < LEAP else None

    def _finding(self, update: JudgedUpdate, rise: _Rise) -> CheckFinding:
        text = message(
            "the norm of all gradients is {number:.4g} times its median of the latest updates, and the loss is "
            "{deviations:.3g} deviations above its own: training may be about to diverge",
            number=rise.norm / rise.median,
            deviations=rise.deviations,
        )
        evidence = {"norm": rise.norm, "median": rise.median, "deviations of the loss": rise.deviations}
        return self.finding(update.facts, update.facts.step, text, evidence)
