"""Worker: the one class with a thread and a queue, for all work that training does not wait for."""

from __future__ import annotations

import atexit
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from operator import itemgetter

from probe.core.faults import Faults

Work = Callable[[], object]
EXIT_SECONDS = 30.0
"""Seconds that the end of the process waits for the threads for which no monitor waits."""
LAST_SECONDS = 1.0
"""Least number of seconds for the last work at the end."""
RETRY_SECONDS = 1.0
"""Time after which a look that has raised is due again, and after which a thread is started again."""
LONGEST_PAUSE = 3600.0
_ending: set[Worker] = set()
"""Workers with their last work queued, for which the end of the process waits."""


def _nothing() -> None:
    """Do nothing."""


def _wait() -> None:
    deadline = time.monotonic() + EXIT_SECONDS
    for worker in list(_ending):
        worker.join(deadline - time.monotonic())


class Worker:
    """Thread that does queued work in order, and looks around from time to time.

    Work that raises is counted, and the next work is done. No method raises, but for an interrupt by the user; a wait
    that was interrupted can be repeated. Methods may be called on any thread and inside a signal handler: the queues
    are ``SimpleQueue``s, and nothing here holds a lock while it waits. The thread belongs to the process that started
    it: in a forked child all methods do nothing.

    Where no thread can be started, in a full process table or at the end of the interpreter, the callers do the work
    themselves, or it is dropped and counted; one second later the next call tries to start the thread again.

    Args:
        name: of the thread.
        where: place under which failures are counted.
        room: most submitted works that wait or are under way; None: any number.
        when_full: whether :meth:`submit` waits for room, or drops the work and counts it.
        inline: whether callers do the work where no thread can be started.
        look: called when it is due; returns the seconds until it is due again, or None: when it is woken.
        due: seconds until ``look`` is due first, perhaps before the owner has this worker; None: when it is woken.
        things: the submitted works, as the counts of lost ones name them.
    """

    def __init__(
        self,
        name: str,
        where: str,
        faults: Faults,
        *,
        room: int | None = None,
        when_full: str = "drop",
        inline: bool = False,
        look: Callable[[], float | None] | None = None,
        due: float | None = None,
        things: str = "steps",
    ) -> None:
        self._name, self._where, self._faults, self._things = name, where, faults, things
        self._waits, self._inline, self._process = when_full == "wait", inline, os.getpid()
        self._look = look or _nothing
        self._due = None if due is None else time.monotonic() + due
        self._queue: queue.SimpleQueue[Work | None] = queue.SimpleQueue()  # None: a look
        self.rest = 0.0
        """Seconds that the thread rests when there is no more work. Work that is submitted meanwhile wakes no thread,
        and is done together, which takes a fraction of the time."""
        self._calls = queue.SimpleQueue[None]()
        """Queue of the calls that end a rest early: a flush, and the end."""
        self._size, self._room = room or 0, queue.SimpleQueue[None]() if room else None
        for _ in range(self._size):
            self._room.put(None)  # type: ignore[union-attr] # there is room
        self._outstanding: deque[None] = deque()  # one entry a submitted work; a number would need a lock
        self._serving = threading.Lock()
        """Held by the thread, or by a caller that does the work; nobody waits for it but a new thread."""
        self._woken = self._counted = self._ended = self._stopped = False
        self._retry_at = 0.0
        self.seconds = 0.0
        """Seconds of processor time of the work."""
        self._thread: threading.Thread | None = None
        self._start()

    @property
    def here(self) -> bool:
        """True if this is the process that the thread belongs to."""
        return os.getpid() == self._process

    def submit(self, work: Work, must: bool = False) -> bool:
        """Queue ``work``. If there is no room, wait for it or drop ``work``, as configured.

        Args:
            must: whether ``work`` needs no room, and is never dropped.

        Returns:
            True if it was queued, or done here.
        """
        if not self.here:
            return False
        if self._ended or not self._served():
            if not must:
                self._lose("after the end" if self._ended else "dropped because no thread could be started", 1)
            return False
        self._outstanding.append(None)
        item = partial(self._do, work, not must)
        if self._room is None or must:
            self._put(item)
            return True
        room = iter(partial(self._room.get, self._waits and self._thread is not None), self)
        try:  # room is taken and the work queued in one call, so that no interrupt by the user comes in between
            deque(map(self._queue.put, map(itemgetter(0), zip((item,), room, strict=False))), 0)
        except queue.Empty:
            self._outstanding.pop()
            self._lose("dropped because the queue was full", 1)
            return False
        if self._ended:  # while this has waited for room
            self._lose("after the end", 1)
            return False
        self._serve()
        return True

    def wake(self) -> bool:
        """Have ``look`` called after the queued work; return false if nobody will."""
        if not self.here or self._ended or not self._served():
            return False
        if not self._woken:
            self._woken = True
            try:
                self._put(None)
            except BaseException:  # an interrupt by the user: the next call puts it
                self._woken = False
                raise
        return True

    def flush(self, seconds: float) -> bool:
        """Wait until all submitted work is done; return False if that takes longer than ``seconds``."""
        if not self.here or not self._outstanding:
            return True
        mark: list[None] = []
        self._put(lambda: mark.append(None))
        self._call()
        return self._passes(lambda: bool(mark), seconds)

    def close(self, seconds: float, last: Work | None = None) -> None:
        """Flush, do ``last`` and end the thread; count the works that are not done within ``seconds`` as lost."""
        deadline = time.monotonic() + seconds
        if not self.flush(seconds) and not self._counted:
            self._counted = True
            waiting = len(self._outstanding) if self._room is None else self._size - self._room.qsize()
            self._lose("not written before the deadline", waiting)
        self.end(last)
        self.join(max(0.0 if last is None else LAST_SECONDS, deadline - time.monotonic()))

    def end(self, last: Work | None = None, awaited: bool = False) -> bool:
        """End the thread after the queued work and ``last``, without waiting for it.

        Args:
            awaited: whether the end of the process waits for it.

        Returns:
            False if ``last`` will not be done: in a forked child, after another end, or without a thread.
        """
        if not self.here or self._ended:
            return False
        if served := self._served():
            if awaited and self._thread is not None:
                if not _ending:
                    atexit.register(_wait)
                _ending.add(self)
            self._put(partial(self._finish, last or _nothing))
            self._call()
        self._ended = True  # only now: an interrupt before leaves the end to a later call
        return served

    def join(self, seconds: float) -> bool:
        """Wait until the thread has ended; return False if that takes longer than ``seconds``."""
        if not self.here or self._thread is None:
            return True
        ended = self._passes(lambda: self._stopped, seconds)
        if ended and self._thread is not threading.current_thread():
            self._thread.join(LAST_SECONDS)  # it has nothing more to do
        return ended

    def _passes(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait for a condition that holds at the latest when the thread has ended."""
        deadline = time.monotonic() + seconds
        while not (condition() or self._stopped):
            if time.monotonic() > deadline or self._thread in (None, threading.current_thread()):
                return False
            time.sleep(0.001)  # no lock: a signal handler may wait here, too, while this waits
        return True

    def _lose(self, how: str, number: int) -> None:
        if number:
            self._faults.lost(f"{self._where}: {self._things} {how}", number)

    def _served(self) -> bool:
        """Return whether somebody does what is queued."""
        return self._thread is not None or self._start() or self._inline

    def _start(self) -> bool:
        """Start the thread; where that is impossible, count it and return false."""
        if time.monotonic() < self._retry_at:
            return False
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        try:
            self._thread.start()
        except (RuntimeError, MemoryError) as error:
            self._thread, self._retry_at = None, time.monotonic() + RETRY_SECONDS
            if not self._inline or threading.main_thread().is_alive():  # at the end of the interpreter, none is needed
                self._faults.note(self._where, error)
            return False
        return True

    def _put(self, work: Work | None) -> None:
        self._queue.put(work)
        self._serve()

    def _serve(self) -> None:
        """Do what is queued, where no thread does."""
        # again if another caller has put something since the queue was found empty
        while self._thread is None and not self._queue.empty() and self._serving.acquire(blocking=False):
            try:
                while not self._queue.empty() and not self._stopped:
                    self._turn(0.0)
            finally:
                self._serving.release()
            if self._stopped:
                return

    def _call(self) -> None:
        """Cut a rest short."""
        if self.rest > 0:
            self._calls.put(None)

    def _run(self) -> None:
        with self._serving:
            while not self._stopped:
                self._turn(LONGEST_PAUSE if self._due is None else self._due - time.monotonic())
                if self.rest > 0 and self._queue.empty() and not self._stopped:
                    with suppress(queue.Empty):
                        self._calls.get(timeout=self.rest)
        _ending.discard(self)

    def _turn(self, pause: float) -> None:
        """Do the next work, if some comes within ``pause`` seconds, and look around if that is due."""
        with suppress(queue.Empty):
            work = self._queue.get(timeout=min(max(0.0, pause), LONGEST_PAUSE))
            if work is None:
                self._woken, self._due = False, time.monotonic()
            else:
                self._attempt(work)
        if self._due is not None and time.monotonic() >= self._due and not self._stopped:
            self._due = time.monotonic() + RETRY_SECONDS
            self._attempt(self._look_around)

    def _look_around(self) -> None:
        pause = self._look()
        self._due = None if pause is None else time.monotonic() + pause

    def _attempt(self, work: Work) -> None:
        begin = time.thread_time()
        try:
            work()
        except BaseException as error:
            self._faults.note(self._where, error)  # if the thread ended, training would wait for it forever
            if not isinstance(error, Exception) and threading.current_thread() is threading.main_thread():
                raise  # Ctrl-C, or the exit of a signal handler, while a caller does the work
        finally:
            self.seconds += time.thread_time() - begin

    def _do(self, work: Work, takes_room: bool) -> None:
        try:
            work()
        finally:
            self._outstanding.popleft()
            if takes_room and self._room is not None:
                self._room.put(None)

    def _finish(self, last: Work) -> None:
        self._attempt(last)
        self._stopped = True
