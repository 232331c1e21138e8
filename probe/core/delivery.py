"""The bounded queue between a step's drain and the sinks, and the one thread behind it."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable

from probe.core.faults import Faults

Work = Callable[[], None]


class Delivery:
    """Runs work in order on one thread.

    Both queues are ``SimpleQueue``s, whose operations are safe inside a signal handler and in any thread. The thread
    belongs to the process that started it: in a forked child everything here does nothing.
    """

    def __init__(self, size: int, when_full: str, faults: Faults) -> None:
        self._when_full, self._faults, self._process = when_full, faults, os.getpid()
        self._work: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._room: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(size):
            self._room.put(None)
        self._submitted = self._done = 0
        self.seconds = 0.0
        """Time the thread has spent working."""
        self._thread = threading.Thread(target=self._run, name="probe-delivery", daemon=True)
        self._thread.start()

    def submit(self, work: Work, must: bool = False) -> bool:
        """Queues ``work``. When the queue is full, waits for room or drops it, as configured; what ``must`` is never
        dropped.

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
        self._work.put(work)
        self._submitted += 1  # only now: a signal handler that flushes in between must not wait for what is not there
        return True

    def flush(self, timeout: float) -> bool:
        """Waits until everything submitted so far is done; False if that took longer than ``timeout`` seconds."""
        goal, deadline = self._submitted, time.monotonic() + timeout
        while self.here and self._thread.is_alive() and self._done < goal:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.001)
        return True

    def close(self, timeout: float) -> None:
        """Flushes, then ends the thread; what takes longer is counted as lost."""
        if not self.flush(timeout):
            self._faults.lost("delivery: steps not written before the deadline", self._submitted - self._done)
            timeout = 0.0
        if self.here and self._thread.is_alive():
            self._work.put(None)
            self._thread.join(timeout)

    @property
    def here(self) -> bool:
        """Whether this is the process that the thread belongs to."""
        return os.getpid() == self._process

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            begin = time.thread_time()
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - were the thread to end, training would wait for it for ever
                self._faults.note("delivery", error)
            self.seconds += time.thread_time() - begin
            self._done += 1
            self._room.put(None)
