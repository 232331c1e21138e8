"""How far ahead a step must be announced, so that every rank sees it in time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

FEWEST = 2
"""Steps, where there are several ranks: one of them may be a step behind."""


class Ahead:
    """Counts steps for the seconds that a file takes to be seen everywhere.

    Args:
        alone: whether there is one rank only: then what is announced holds at once.
        seconds: after which every rank sees a change of a file.
        first: number of the first step.
        now: seconds of a monotonic clock.
    """

    def __init__(self, alone: bool, seconds: float, first: int, now: Callable[[], float] = time.monotonic) -> None:
        self._alone, self._seconds, self._first, self._now, self._began = alone, seconds, first, now, now()

    def __call__(self, step: int) -> int:
        """In how many steps what is written before ``step`` will have been seen."""
        if self._alone:
            return 0
        a_step = (self._now() - self._began) / max(step - self._first, 1)
        return max(FEWEST, math.ceil(self._seconds / a_step)) if a_step > 0 else FEWEST
