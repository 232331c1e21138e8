"""Processor time that a tracker may take, as a part of the time that has passed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

FREE_SECONDS = 0.25
"""Processor time that is spent in any case, so that short runs are whole."""

MOST_STEPS = 64
"""Latest steps whose answers are kept."""


class TrackerBudget:
    """Account of the processor time of a tracker, for any number of threads.

    Args:
        part: most processor time as a part of the time since the beginning.
        clock: returns seconds.
    """

    def __init__(self, part: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._part, self._clock, self._began = part, clock, clock()
        self._spent = 0.0
        self._admitted: dict[int, bool] = {}
        self._lock = threading.Lock()

    def admits(self, step: int) -> bool:
        """Return whether there was time left when ``step`` was asked for first.

        The rows of a step come on two threads, and either all of them are taken or none.
        """
        with self._lock:
            admitted = self._admitted.get(step)
            if admitted is None:
                seconds = FREE_SECONDS + self._part * (self._clock() - self._began) - self._spent
                admitted = self._admitted[step] = seconds >= 0
                if len(self._admitted) > MOST_STEPS:
                    del self._admitted[min(self._admitted)]
            return admitted

    @contextmanager
    def spending(self) -> Iterator[None]:
        """Return a context whose processor time on this thread is counted."""
        begin = time.thread_time()
        try:
            yield
        finally:
            self.spend(time.thread_time() - begin)

    def spend(self, seconds: float) -> None:
        """Count ``seconds``."""
        with self._lock:
            self._spent += seconds
