"""The steps that are sampled, and the interval between them within a budget, from the cost of sampling so far."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from statistics import median

SAMPLES = 5
"""Number of latest sampled steps whose cost counts."""
STEPS = 21
"""Number of latest steps whose duration counts."""
FEWEST = 3
"""Sampled steps before the interval changes: the first ones include costs that occur once."""


class Pace:
    """The interval between sampled steps, long enough that the cost of sampling stays below a part of training.

    If a sampled step costs ``c`` seconds and a step without the monitor takes ``s``, the overhead at an interval ``n``
    is ``c / (n s)``. Both are medians of the last steps, which a single slow step does not move. The monitor cannot
    measure all of its cost: a device is busy while the host is idle, and calling a hook costs time. If sampled steps
    take longer than others by more than the measured cost and the spread of others, the difference counts instead.

    Args:
        budget: the largest part of training's time, such as 0.01.
        interval: the smallest distance between sampled steps, as configured.
    """

    def __init__(self, budget: float, interval: int) -> None:
        self._budget, self._least = budget, interval
        self._costs: deque[float] = deque(maxlen=SAMPLES)
        self._beside: deque[float] = deque(maxlen=SAMPLES)
        self._steps: deque[float] = deque(maxlen=STEPS)
        """Durations without the measured time of the monitor."""
        self._sampled: deque[float] = deque(maxlen=SAMPLES)
        self._others: deque[float] = deque(maxlen=STEPS)
        self._seen = 0
        self.interval = interval
        """Steps from one sampled step to the next."""
        self.skipped = 0
        """Number of steps that were due to be sampled as configured, but were not."""

    def step(self, seconds: float, monitor: float, sampled: bool = False) -> None:
        """Count a step of ``seconds``, of which ``monitor`` were the monitor's."""
        self._steps.append(max(seconds - monitor, 0.0))
        (self._sampled if sampled else self._others).append(seconds)

    def sampled(self, monitor: float, beside: float = 0.0) -> None:
        """Count a sampled step that has cost ``monitor`` seconds of training and ``beside`` on other threads."""
        self._costs.append(monitor)
        self._beside.append(beside)
        self._seen += 1
        if self._seen >= FEWEST and self._steps:
            self._want(self._wanted())

    def between(self, step: int) -> None:
        """Update the interval before ``step`` begins."""

    def _want(self, interval: int) -> None:
        self.interval = interval

    @property
    def overhead(self) -> float:
        """The cost of sampling at this interval as a part of training time; NaN before the first measurement."""
        plain = self._plain
        return self._cost / (self.interval * plain) if self._costs and plain else math.nan

    @property
    def _plain(self) -> float:
        """Seconds that a step takes without the monitor."""
        steps = self._others if len(self._others) >= SAMPLES else self._steps
        return median(steps) if steps else 0.0

    @property
    def _cost(self) -> float:
        """Seconds that sampling a step costs."""
        measured, longer = median(self._costs), 0.0
        if len(self._others) >= SAMPLES and self._sampled:
            usual = median(self._others)
            longer = median(self._sampled) - usual - median(abs(seconds - usual) for seconds in self._others)
        return max(measured, longer) + median(self._beside)

    def _wanted(self) -> int:
        allowed = self._budget * self._plain
        needed = math.ceil(self._cost / allowed) if allowed > 0 else self._least
        return -(-max(needed, self._least) // self._least) * self._least


@dataclass
class Schedule:
    """Every ``step_interval``-th step from ``start_step`` on, ``collect_times`` times; fewer with a ``pace``."""

    start_step: int = 0
    step_interval: int = 1
    collect_times: int = 100_000_000
    pace: Pace | None = None
    collected: int = 0
    last: int | None = None
    """The step that was sampled last."""
    finished: bool = False
    """True if no further step will be sampled."""

    def __post_init__(self) -> None:
        self.finished = self.collected >= self.collect_times

    def samples(self, step: int) -> bool:
        """True if ``step`` is to be sampled."""
        if self.finished or step < self.start_step or (step - self.start_step) % self.step_interval:
            return False
        return self.pace is None or self.last is None or step - self.last >= self.pace.interval

    def ended(self, step: int, sampled: bool) -> None:
        """Count ``step``, which has ended."""
        if sampled:
            self.last = step
            self.collected += 1
            self.finished = self.collected >= self.collect_times
        elif self.pace is not None and not self.finished and step >= self.start_step:
            self.pace.skipped += (step - self.start_step) % self.step_interval == 0
