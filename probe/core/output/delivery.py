"""The bounded queue between a step's drain and the sinks, and the one thread behind it."""

from __future__ import annotations

import atexit
import os
import queue
import threading
import time
from collections.abc import Callable

from probe.core.faults import Faults

Work = Callable[[], None]
WAIT_SECONDS = 30.0
"""How long the end of the process waits for each thread that no monitor waits for."""
_ending: set[threading.Thread] = set()
"""Threads that are on their last work."""


def _wait() -> None:
    for thread in list(_ending):
        thread.join(WAIT_SECONDS)


class Delivery:
    """Runs work in order on one thread.

    Both queues are ``SimpleQueue``s, whose operations are safe inside a signal handler and in any thread. The thread
    belongs to the process that started it: in a forked child everything here does nothing.
    """

    def __init__(self, size: int, when_full: str, faults: Faults) -> None:
        self._when_full, self._faults, self._process = when_full, faults, os.getpid()
        self._work: queue.SimpleQueue[tuple[Work, bool] | None] = queue.SimpleQueue()
        self._room: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(size):
            self._room.put(None)
        self._submitted = self._done = 0
        self.seconds = 0.0
        """Time the thread has spent working."""
        self._thread = threading.Thread(target=self._run, name="probe-delivery", daemon=True)
        self._thread.start()

    def submit(self, work: Work, must: bool = False) -> bool:
        """Queues ``work``. When the queue is full, waits for room or drops it, as configured.

        Args:
            must: whether it is never dropped.

        Returns:
            Whether it was queued.
        """
        if not self.here or not self._thread.is_alive():
            return False
        try:
            self._room.get(block=must or self._when_full == "wait")
        except queue.Empty:
            self._faults.lost("delivery: steps dropped because the queue was full", 1)
            return False
        self._work.put((work, True))
        self._submitted += (
            1  # only now: a signal handler that flushes in between must not wait for work that is not queued
        )
        return True

    def wake(self, work: Work) -> None:
        """Runs ``work`` too, without taking room in the queue; a flush does not wait for it. On any thread."""
        if self.here:
            self._work.put((work, False))

    def flush(self, timeout: float) -> bool:
        """Waits until all work submitted so far is done; False if that took longer than ``timeout`` seconds."""
        goal, deadline = self._submitted, time.monotonic() + timeout
        while self.here and self._thread.is_alive() and self._done < goal:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.001)
        return True

    def close(self, timeout: float) -> None:
        """Flushes, then ends the thread; steps that are not written within ``timeout`` seconds are counted as lost."""
        if not self.flush(timeout):
            self._faults.lost("delivery: steps not written before the deadline", self._submitted - self._done)
            timeout = 0.0
        if self.here and self._thread.is_alive():
            self._work.put(None)
            self._thread.join(timeout)

    def end_with(self, last: Work) -> None:
        """Ends the thread after the queued work and ``last``; only the end of the process waits for it."""
        if self.here and self._thread.is_alive():
            if not _ending:
                atexit.register(_wait)
            _ending.add(self._thread)
            self._work.put((last, False))
            self._work.put(None)

    @property
    def here(self) -> bool:
        """Whether this is the process that the thread belongs to."""
        return os.getpid() == self._process

    def _run(self) -> None:
        while (next_one := self._work.get()) is not None:
            work, submitted = next_one
            begin = time.thread_time()
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - were the thread to end, training would wait for it for ever
                self._faults.note("delivery", error)
            del work, next_one  # objects that it holds are not kept until there is more to do
            self.seconds += time.thread_time() - begin
            if submitted:
                self._done += 1
                self._room.put(None)
        _ending.discard(threading.current_thread())
