"""The delivery: the bounded queue between a step's drain and the sinks, and the thread that serves it."""

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
"""Seconds that the end of the process waits for each thread for which no monitor waits."""
_ending: set[threading.Thread] = set()
"""Threads with their last work queued."""


def _wait() -> None:
    for thread in list(_ending):
        thread.join(WAIT_SECONDS)


class Delivery:
    """The thread that runs work in order.

    Both queues are ``SimpleQueue``s, whose operations are safe inside a signal handler and on any thread. The thread
    belongs to the process that started it: in a forked child all methods do nothing.
    """

    def __init__(self, size: int, when_full: str, faults: Faults) -> None:
        self._when_full, self._faults, self._process = when_full, faults, os.getpid()
        self._work: queue.SimpleQueue[tuple[Work, bool] | None] = queue.SimpleQueue()
        self._room: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(size):
            self._room.put(None)
        self._submitted = self._done = 0
        self.seconds = 0.0
        """Seconds of processor time of the thread."""
        self._thread = threading.Thread(target=self._run, name="probe-delivery", daemon=True)
        self._thread.start()

    def submit(self, work: Work, must: bool = False) -> bool:
        """Queue ``work``. If the queue is full, wait for room or drop ``work``, as configured.

        Args:
            must: whether ``work`` is never dropped.

        Returns:
            True if it was queued.
        """
        if not self.here or not self._thread.is_alive():
            return False
        try:
            self._room.get(block=must or self._when_full == "wait")
        except queue.Empty:
            self._faults.lost("delivery: steps dropped because the queue was full", 1)
            return False
        self._work.put((work, True))
        self._submitted += 1  # only now: a signal handler that flushes before must not wait for work that is not queued
        return True

    def wake(self, work: Work) -> None:
        """Queue ``work`` without taking up room; a flush does not wait for it. Callable on any thread."""
        if self.here:
            self._work.put((work, False))

    def flush(self, timeout: float) -> bool:
        """Wait until all submitted work is done; return False if that takes longer than ``timeout`` seconds."""
        goal, deadline = self._submitted, time.monotonic() + timeout
        while self.here and self._thread.is_alive() and self._done < goal:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.001)
        return True

    def close(self, timeout: float) -> None:
        """Flush, then end the thread; count steps that are not written within ``timeout`` seconds as lost."""
        if not self.flush(timeout):
            self._faults.lost("delivery: steps not written before the deadline", self._submitted - self._done)
            timeout = 0.0
        if self.here and self._thread.is_alive():
            self._work.put(None)
            self._thread.join(timeout)

    def end_with(self, last: Work) -> None:
        """End the thread after the queued work and ``last``; only the end of the process waits for it."""
        if self.here and self._thread.is_alive():
            if not _ending:
                atexit.register(_wait)
            _ending.add(self._thread)
            self._work.put((last, False))
            self._work.put(None)

    @property
    def here(self) -> bool:
        """True if this is the process that the thread belongs to."""
        return os.getpid() == self._process

    def _run(self) -> None:
        while (next_one := self._work.get()) is not None:
            work, submitted = next_one
            begin = time.thread_time()
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - if the thread ended, training would wait for it forever
                self._faults.note("delivery", error)
            del work, next_one  # else its objects would live until the next work
            self.seconds += time.thread_time() - begin
            if submitted:
                self._done += 1
                self._room.put(None)
        _ending.discard(threading.current_thread())
