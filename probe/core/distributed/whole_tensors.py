"""Exchange with other ranks on a thread of its own, and the order in which steps are written meanwhile.

Delivery passes each step to the exchange and goes on; training never waits for another rank. A step is written once,
when the exchange is done with it and all steps before it are written. If another rank is late, a bounded number of
steps wait; the oldest is then written without the numbers of whole tensors.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from probe.core.distributed.global_stats import GlobalStats
from probe.core.door import attempt
from probe.core.faults import Faults
from probe.core.records import Batch
from probe.core.worker import Worker

WAITING = 32
"""Most steps that wait for other ranks, unwritten."""
MOST_BYTES = 64 << 20
"""Largest size of the batches that the exchange has still to send, written or not."""
WHERE = "global statistics"
"""Place under which failures are counted."""
LATE = "global statistics: steps written before all ranks had come"


class Offer:
    """Step from its delivery until the exchange is done with it."""

    def __init__(self, stats: GlobalStats, step: int, batches: Sequence[Batch]) -> None:
        self.stats, self.step, self.batches = stats, step, batches
        self.size = sum(column.nbytes for batch in batches for column in batch.columns.values())
        self.result: list[Batch] | None = None
        """Batches with the numbers of whole tensors; None while the exchange is not done."""

    def without(self) -> list[Batch]:
        """Batches without waiting for other ranks."""
        return self.stats.without(self.batches)


class Wholes:
    """Thread on which one :class:`GlobalStats` exchanges, step after step.

    Args:
        wake: called on that thread when a step is done.
        spent: called there with the processor time of each step, in seconds.
    """

    def __init__(
        self, stats: GlobalStats, wake: Callable[[], object], spent: Callable[[float], None], faults: Faults
    ) -> None:
        self._stats, self._wake, self._spent = stats, wake, spent
        self._taken = self._done = 0
        """Total sizes in bytes of offers taken and done. Each is changed by one thread only."""
        self._worker = Worker("probe-exchange", WHERE, faults, things="steps of this rank")

    def offer(self, step: int, batches: Sequence[Batch]) -> Offer:
        """Queue ``batches`` for the thread. If more is pending than there is room for, the exchange ends for good."""
        offer = Offer(self._stats, step, batches)
        self._taken += offer.size
        if self._taken - self._done > MOST_BYTES:
            self._stats.give_up(BufferError(f"more than {MOST_BYTES >> 20} MiB wait for ranks that are late"))
        if not self._worker.submit(partial(self._exchange, offer)):  # training must not wait for other ranks
            offer.result = offer.without()
            self._stats.give_up(RuntimeError("there is no thread that could wait for other ranks"))
        return offer

    def close(self, timeout: float = 0.0) -> None:
        """End the exchange once the thread is free; wait for that at most ``timeout`` seconds."""
        self._stats.end()
        self._worker.end(self._stats.close)
        self._worker.join(timeout)

    def _exchange(self, offer: Offer) -> None:
        begin, result = time.thread_time(), list(offer.batches)
        try:
            result = self._stats.add(offer.step, offer.batches)
        finally:  # else every later step would wait for this one
            self._spent(time.thread_time() - begin)
            self._done += offer.size
            offer.result = result
            self._wake()


class _Place(NamedTuple):
    """Action to be done in its turn."""

    offer: Offer | None
    """Step that it waits for."""
    act: Callable[[list[Batch]], None]
    """Function to call with the batches of ``offer``."""


class Line:
    """Actions of the delivery thread in order, each done as soon as the step that it waits for is ready. Used on that
    thread, except for methods marked otherwise."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self.places: deque[_Place] = deque()
        """Places whose turn has not come."""
        self._steps = 0
        """Number of places with a step of the exchange."""
        self._ending = False

    def __len__(self) -> int:
        """Number of places whose turn has not come; on any thread."""
        return len(self.places)

    def add(self, offer: Offer | None, act: Callable[[list[Batch]], None]) -> None:
        """Add a place at the end, and do what is ready."""
        self.places.append(_Place(offer, act))
        self._steps += offer is not None
        self.advance()

    def advance(self) -> None:
        """Do what is ready."""
        while self.places:
            offer, act = self.places[0]
            if offer is not None and offer.result is None and self._steps <= WAITING and not self._ending:
                return
            try:  # later places have their turn whatever is raised
                attempt(self._faults, "delivery", act, self._batches(offer))
            finally:
                self._steps -= offer is not None
                self.places.popleft()

    def end(self) -> None:
        """Stop waiting for other ranks; on any thread."""
        self._ending = True

    def _batches(self, offer: Offer | None) -> list[Batch]:
        if offer is None:
            return []
        if offer.result is not None:
            return offer.result
        self._faults.lost(LATE, 1)
        return offer.without()
