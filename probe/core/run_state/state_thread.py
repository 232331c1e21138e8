"""The thread of the run's state: a bounded queue that training never waits for."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from probe.core.faults import Faults
from probe.core.records import Outcome
from probe.core.run_state.numbers import LoggedNumbers

MOST_WAITING = 10_000
"""Steps that may wait; later ones are dropped and counted."""
LAST_SECONDS = 1.0
"""Least number of seconds that the end waits for the files."""
LOOK_SECONDS = 1.0
"""Longest time between two looks around."""


class EndedStep(NamedTuple):
    """A step as the training thread hands it over."""

    step: int
    time: float
    """Seconds since the epoch at its end."""
    seconds: float
    """Time since the end of the step before; NaN for the first one."""
    outcome: Outcome
    logged: LoggedNumbers
    phases: Mapping[str, float]
    """Seconds by phase."""
    waited: float | None
    """Seconds within collectives; None if unknown."""
    read: frozenset[str]
    """Names of the numbers that were read from the optimizer as it updated."""
    late: LoggedNumbers
    """Numbers of the step before, logged after its end."""
    waits: bool
    """True if more numbers of this step may be logged after its end."""


class StateThread:
    """The thread that takes steps in order. It belongs to the process that started it: a forked child has none.

    Args:
        take: called with each step.
        look: called about once a second.
    """

    def __init__(self, take: Callable[[EndedStep], None], look: Callable[[], None], faults: Faults) -> None:
        self._take, self._look_around, self._faults, self._process = take, look, faults, os.getpid()
        # a SimpleQueue is safe inside a signal handler
        self._queue: queue.SimpleQueue[EndedStep | Callable[[], None]] = queue.SimpleQueue()
        self._submitted = self._done = 0
        self._ends = False
        self._looked = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="probe-run-state", daemon=True)
        self._thread.start()

    def put(self, step: EndedStep) -> None:
        """Queue ``step``; never wait."""
        if os.getpid() != self._process:
            return
        if self._submitted - self._done >= MOST_WAITING:
            self._faults.lost("run state: steps dropped because too many waited", 1)
            return
        self._submitted += 1
        self._queue.put(step)

    def flush(self, timeout: float, complete: Callable[[], None]) -> bool:
        """Wait until all queued steps and then ``complete`` are done; return False if that takes longer than
        ``timeout`` seconds."""
        if os.getpid() == self._process and self._thread.is_alive():
            self._submitted += 1
            self._queue.put(complete)
        deadline = time.monotonic() + timeout
        while os.getpid() == self._process and self._thread.is_alive() and self._done < self._submitted:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.001)
        return True

    def close(self, timeout: float, complete: Callable[[], None], last: Callable[[], None]) -> None:
        """End the thread after the queued steps, ``complete`` and ``last``; steps not done within ``timeout`` seconds
        are counted."""
        if os.getpid() != self._process:
            return
        deadline = time.monotonic() + timeout
        if not self.flush(timeout, complete):
            self._faults.lost("run state: steps not written before the deadline", self._submitted - self._done)
        self.end_with(last)
        self._thread.join(max(LAST_SECONDS, deadline - time.monotonic()))

    def end_with(self, last: Callable[[], None]) -> None:
        """End the thread after the queued steps and ``last``, without waiting for it."""

        def end() -> None:
            self._ends = True
            last()

        if os.getpid() == self._process:
            self._queue.put(end)

    def _run(self) -> None:
        while not self._ends:
            try:
                self._next()
            except BaseException as error:  # noqa: BLE001 - the thread serves later steps
                self._faults.note("run state", error)
            if time.monotonic() - self._looked >= LOOK_SECONDS:
                self._looked = time.monotonic()
                self._look_around()

    def _next(self) -> None:
        try:
            work = self._queue.get(timeout=LOOK_SECONDS)
        except queue.Empty:
            return
        if isinstance(work, EndedStep):
            try:
                self._take(work)
            finally:
                self._done += 1
        else:
            work()

    def done(self) -> None:
        """Count work that is no step as done; called by it."""
        self._done += 1
