"""The exchange with other ranks on a thread of its own, and the order in which steps are written meanwhile.

Delivery hands each step to the exchange and goes on; training never waits for another rank. A step is written once,
when the exchange is done with it and all steps before it are written. Where another rank is late, a bounded number of
steps wait; the oldest is then written without the numbers of whole tensors.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from probe.core.distributed.global_stats import GlobalStats
from probe.core.faults import Faults
from probe.core.records import Batch

WAITING = 32
"""Steps that wait for other ranks, unwritten."""
MOST_BYTES = 64 << 20
"""Of numbers that the exchange has still to send, written or not."""
LATE = "global statistics: steps written before all ranks had come"


class Offer:
    """One step, from its delivery until the exchange is done with it."""

    def __init__(self, stats: GlobalStats, step: int, batches: Sequence[Batch]) -> None:
        self.stats, self.step, self.batches = stats, step, batches
        self.size = sum(column.nbytes for batch in batches for column in batch.columns.values())
        self.result: list[Batch] | None = None
        """The batches with what all ranks know; None while the exchange is not done."""

    def without(self) -> list[Batch]:
        """The batches as they are if other ranks are not waited for."""
        return self.stats.without(self.batches)


class Wholes:
    """The thread on which one :class:`GlobalStats` exchanges, step after step.

    Args:
        wake: called on that thread when a step is done.
        spent: called there with the seconds of processor time that each step took.
    """

    def __init__(
        self, stats: GlobalStats, wake: Callable[[], None], spent: Callable[[float], None], faults: Faults
    ) -> None:
        self._stats, self._wake, self._spent, self._faults = stats, wake, spent, faults
        self._offers: queue.SimpleQueue[Offer | None] = queue.SimpleQueue()
        self._taken = self._done = 0
        """Bytes. Each is changed by one thread only."""
        self._thread = threading.Thread(target=self._run, name="probe-exchange", daemon=True)
        self._thread.start()

    def offer(self, step: int, batches: Sequence[Batch]) -> Offer:
        """Has the thread exchange ``batches``. Where more is pending than there is room for, the exchange ends for
        good."""
        offer = Offer(self._stats, step, batches)
        self._taken += offer.size
        if self._taken - self._done > MOST_BYTES:
            self._stats.give_up(BufferError(f"more than {MOST_BYTES >> 20} MiB wait for ranks that are late"))
        self._offers.put(offer)
        return offer

    def close(self, timeout: float = 0.0) -> None:
        """Ends the exchange once the thread is free, for which this waits no longer than ``timeout`` seconds."""
        self._stats.end()
        self._offers.put(None)
        self._thread.join(timeout)

    def _run(self) -> None:
        while (offer := self._offers.get()) is not None:
            begin = time.thread_time()
            try:
                result = self._stats.add(offer.step, offer.batches)
            except BaseException as error:  # noqa: BLE001 - were the thread to end, every step would wait
                self._faults.note("global statistics", error)
                result = list(offer.batches)
            self._spent(time.thread_time() - begin)
            self._done += offer.size
            offer.result = result
            self._wake()
        self._stats.close()


class _Place(NamedTuple):
    """Something to be done in its turn."""

    offer: Offer | None
    """What it waits for."""
    act: Callable[[list[Batch]], None]
    """Called with the batches of ``offer``."""


class Line:
    """What the delivery thread does in order, each as soon as what it waits for is there. Used on that thread, except
    where a method says so."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._places: deque[_Place] = deque()
        self._steps = 0
        """Places that wait for other ranks, or have."""
        self._ending = False

    def __len__(self) -> int:
        """Places whose turn has not come; on any thread."""
        return len(self._places)

    def add(self, offer: Offer | None, act: Callable[[list[Batch]], None]) -> None:
        """Takes a place at the end, and does what can be done now."""
        self._places.append(_Place(offer, act))
        self._steps += offer is not None
        self.advance()

    def advance(self) -> None:
        """Does what is ready."""
        while self._places:
            offer, act = self._places[0]
            if offer is not None and offer.result is None and self._steps <= WAITING and not self._ending:
                return
            try:
                act(self._batches(offer))
            except BaseException as error:  # noqa: BLE001 - what comes after it has its turn nevertheless
                self._faults.note("delivery", error)
            self._steps -= offer is not None
            self._places.popleft()

    def end(self) -> None:
        """Other ranks are not waited for from now on; on any thread."""
        self._ending = True

    def _batches(self, offer: Offer | None) -> list[Batch]:
        if offer is None:
            return []
        if offer.result is not None:
            return offer.result
        self._faults.lost(LATE, 1)
        return offer.without()
