"""The interval between sampled steps within a budget, from the cost of sampling so far."""

from __future__ import annotations

import math
from collections import deque
from statistics import median

SAMPLES = 5
"""Sampled steps whose cost is remembered."""
STEPS = 21
"""Steps whose duration is remembered."""
FEWEST = 3
"""Sampled steps before the interval changes: the first ones pay for what is made once."""


class Pace:
    """Stretches the interval between sampled steps, so that the cost of sampling stays below a part of training.

    A sampled step costs ``c`` seconds and a step without the monitor takes ``s``: at an interval ``n`` the overhead is
    ``c / (n s)``. Both are medians of the last steps, which a single slow step does not move. The monitor cannot
    measure all of its cost (a device is busy when the host is not, and hooks cost before they begin): if sampled steps
    take longer than others by more than the measured cost and than the spread of others, the difference counts.

    Args:
        budget: the largest part of training's time, such as 0.01.
        interval: the smallest distance between sampled steps, as configured.
    """

    def __init__(self, budget: float, interval: int) -> None:
        self._budget, self._least = budget, interval
        self._costs: deque[float] = deque(maxlen=SAMPLES)
        self._beside: deque[float] = deque(maxlen=SAMPLES)
        self._steps: deque[float] = deque(maxlen=STEPS)
        """Durations without the monitor's known part."""
        self._sampled: deque[float] = deque(maxlen=SAMPLES)
        self._others: deque[float] = deque(maxlen=STEPS)
        self._seen = 0
        self.interval = interval
        """Steps from one sampled step to the next."""
        self.skipped = 0
        """Number of steps that were to be sampled as configured, but were not."""

    def step(self, seconds: float, own: float, sampled: bool = False) -> None:
        """Counts a step of ``seconds``, of which ``own`` were the monitor's."""
        self._steps.append(max(seconds - own, 0.0))
        (self._sampled if sampled else self._others).append(seconds)

    def sampled(self, own: float, beside: float = 0.0) -> None:
        """Counts a sampled step that has cost ``own`` seconds of training and ``beside`` seconds of other threads."""
        self._costs.append(own)
        self._beside.append(beside)
        self._seen += 1
        if self._seen >= FEWEST and self._steps:
            self._want(self._wanted())

    def between(self, step: int) -> None:
        """Called before ``step`` begins."""

    def _want(self, interval: int) -> None:
        self.interval = interval

    @property
    def overhead(self) -> float:
        """The cost of sampling at this interval as a part of training's time; NaN before any is known."""
        plain = self._plain
        return self._cost / (self.interval * plain) if self._costs and plain else math.nan

    @property
    def _plain(self) -> float:
        """Seconds of a step without the monitor."""
        steps = self._others if len(self._others) >= SAMPLES else self._steps
        return median(steps) if steps else 0.0

    @property
    def _cost(self) -> float:
        """Seconds of sampling a step."""
        known, longer = median(self._costs), 0.0
        if len(self._others) >= SAMPLES and self._sampled:
            usual = median(self._others)
            longer = median(self._sampled) - usual - median(abs(seconds - usual) for seconds in self._others)
        return max(known, longer) + median(self._beside)

    def _wanted(self) -> int:
        allowed = self._budget * self._plain
        needed = math.ceil(self._cost / allowed) if allowed > 0 else self._least
        return -(-max(needed, self._least) // self._least) * self._least
