"""Thread that hands a run to a tracker: bounded, so that a tracker that hangs costs its own rows alone."""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from probe.core.door import succeeds
from probe.core.faults import Faults
from probe.core.trackers import Cell, Notice, TrackedRow, TrackedTable, Tracker, TrackerEnded
from probe.core.worker import Worker

BEGIN_SECONDS = 10.0
"""Default of the longest time for which the end of the process waits for the beginning of a run that is under way."""
END_SECONDS = 1.0
"""Time beyond that of the end in which a run that has begun is ended in the tracker."""
MOST_WAITING = 1000
"""Rows, alerts and tables that may wait; later ones are dropped and counted."""
Item = TrackedRow | Notice | TrackedTable | Mapping[str, Cell] | Path
FREE_SECONDS = 0.25
"""Processor time that is spent in any case, so that short runs are whole."""
MOST_STEPS = 64
"""Latest steps whose answers are kept."""


class TrackerThread:
    """Thread on which a tracker is begun, fed and ended.

    What comes first is handed over at once: a short run whose tracker the program finishes before its monitor has a
    row all the same.

    Args:
        tracker: begun at the first row.
        every: seconds from one call of the tracker to the next.
        last: returns what is handed over at the end.
        budget: account of the processor time of the tracker.
        began: called after the tracker has begun.
        patience: longest time in seconds for which the end of the process waits for the beginning of the run.
    """

    def __init__(
        self,
        name: str,
        tracker: Tracker,
        every: float,
        faults: Faults,
        last: Callable[[], Iterable[Item]],
        budget: TrackerBudget | None = None,
        began: Callable[[], None] = lambda: None,
        patience: float = BEGIN_SECONDS,
    ) -> None:
        self._patience = patience
        self._over = False
        """True once the time of the end has passed: then a run that has begun is only ended."""
        self._budget = budget or TrackerBudget(1.0)
        self._where, self._every, self._faults, self._last = f"tracker {name}", every, faults, last
        self._on_began = began
        self._tracker, self._begun, self._given_up = tracker, False, False
        self._waiting: deque[Item] = deque()
        self._sent = self._put = self._missed = 0
        self._first = self._ending = False
        self._settled = threading.Event()
        self._worker = Worker("probe-tracker", self._where, faults, look=self._hand_over)
        settle_before_exit(weakref.WeakMethod(self.settle))

    def settle(self) -> None:
        """Wait until the beginning of the run, if it is under way, has succeeded or failed: handlers that a client
        registers for the exit meanwhile would be called before the monitor's own."""
        if self._worker.here and self._first:
            self._settled.wait(self._patience)

    def put(self, item: Item) -> None:
        """Queue ``item``; never wait."""
        if not self._worker.here or self._ending:
            return
        if self._given_up or self._put - self._sent >= MOST_WAITING:
            self._lost(1)
            return
        self._put += 1
        self._waiting.append(item)
        if not self._first:
            self._first = self._worker.wake()

    def ending(self) -> None:
        """Have what waits handed over, and the run ended; wait for neither."""
        self._ending = True
        self._worker.submit(self._hand_over, must=True)
        self._worker.submit(self._send_last, must=True)
        self._worker.end(self._end)

    def close(self, seconds: float) -> int:
        """Hand over what waits and end the run, within ``seconds``; with 0 seconds, do so without waiting.

        Returns:
            The number of rows that the tracker has not taken, as far as that was waited for.
        """
        if not self._worker.here:
            return 0
        self.ending()
        if not self._worker.join(seconds) and seconds > 0:
            self._over = True
            if self._begun:
                self._worker.join(END_SECONDS)
            self._faults.note(self._where, TimeoutError(f"not ended within {seconds:g} s; the files have all rows"))
        if seconds <= 0:
            return 0
        self._lost(self._put - self._sent)
        return self._missed

    def _send_last(self) -> None:
        for item in self._last() if self._begun and not self._over else ():
            self._send([item])

    def _end(self) -> None:
        if self._begun:
            self._tracker.end()

    def _hand_over(self) -> float:
        """Hand over what waits; return the seconds until that is due again."""
        if items := [self._waiting.popleft() for _ in range(len(self._waiting))]:
            self._take(items)
        return self._every

    def _take(self, items: Sequence[Item]) -> None:
        if not self._begun and not self._given_up:
            try:
                self._begun = succeeds(self._faults, self._where, self._begin)
            finally:  # a client may even want to end the process
                self._given_up = not self._begun
                self._settled.set()
        with self._budget.spending():
            self._send(merged(item for item in items if isinstance(item, TrackedRow)))
            for item in latest(items):
                self._send([item])
        self._sent += len(items)

    def _begin(self) -> None:
        self._tracker.begin()
        self._on_began()

    def _send(self, items: Sequence[Item]) -> None:
        if self._given_up or self._over or (items and not succeeds(self._faults, self._where, self._deliver, items)):
            self._lost(len(items))

    def _deliver(self, items: Sequence[Item]) -> None:
        try:
            deliver(self._tracker, items)
        except TrackerEnded:
            self._given_up = True
            raise

    def _lost(self, number: int) -> None:
        if number:
            self._missed += number
            self._faults.lost(f"{self._where}: rows not taken", number)


def settle_before_exit(settle: weakref.WeakMethod[Callable[[], None]]) -> None:
    """Have ``settle`` called when the main thread has ended, before any handler of the exit, where Python has a list of
    such functions (3.9 to 3.14 have, for its own executors)."""

    def settle_now() -> None:
        if (function := settle()) is not None:
            function()

    register = getattr(threading, "_register_atexit", None)
    if register is not None:
        register(settle_now)


def deliver(tracker: Tracker, items: Sequence[Item]) -> None:
    """Hand ``items`` to ``tracker``: rows, or one of another kind."""
    for item in items:
        if isinstance(item, TrackedRow):
            tracker.log([row for row in items if isinstance(row, TrackedRow)])
            return
        if isinstance(item, Notice):
            tracker.alert(item)
        elif isinstance(item, TrackedTable):
            tracker.table(item)
        elif isinstance(item, Path):
            tracker.artifact(item)
        else:
            tracker.summary(item)


def merged(rows: Iterable[TrackedRow]) -> list[TrackedRow]:
    """Return one row a step, in the order of steps."""
    rows_by_step: dict[int, TrackedRow] = {}
    for row in rows:
        before = rows_by_step.get(row.step)
        values = row.values if before is None else {**before.values, **row.values}
        rows_by_step[row.step] = row._replace(values=values)
    return [rows_by_step[step] for step in sorted(rows_by_step)]


def latest(items: Iterable[Item]) -> list[Item]:
    """Return the items that are no rows: every alert and file, one table of a name, and one summary."""
    alone: list[Item] = []
    tables: dict[str, Item] = {}
    texts: dict[str, Cell] = {}
    for item in items:
        if isinstance(item, (Notice, Path)):
            alone.append(item)
        elif isinstance(item, TrackedTable):
            tables[item.name] = item
        elif not isinstance(item, TrackedRow):
            texts |= item
    return [*alone, *tables.values(), *([texts] if texts else [])]


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
