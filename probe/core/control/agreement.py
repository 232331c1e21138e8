"""How far ahead a step must be announced, so that every rank sees it in time."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from statistics import median

FEWEST = 2
"""Steps, where there are several ranks: one of them may be a step behind."""
STEPS = 21
"""Steps whose duration is remembered. Their median counts: the first step of a run, and those that save or evaluate,
take many times as long as those that are to come."""


class Ahead:
    """Counts steps for the seconds that a file takes to be seen everywhere.

    Args:
        alone: whether there is one rank only: then what is announced holds at once.
        seconds: after which every rank sees a change of a file.
        now: seconds of a monotonic clock.
    """

    def __init__(self, alone: bool, seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        self._alone, self._now, self._ended = alone, now, now()
        self._took: deque[float] = deque(maxlen=STEPS)
        self.seconds = seconds

    def ended(self) -> None:
        """Another step has ended."""
        now = self._now()
        self._took.append(now - self._ended)
        self._ended = now

    def __call__(self, _: int) -> int:
        """In how many steps what is written before the next one will have been seen."""
        if self._alone:
            return 0
        a_step = median(self._took) if self._took else 0.0
        return max(FEWEST, math.ceil(self.seconds / a_step)) if a_step > 0 else FEWEST
