"""Exchange with other ranks on a thread of its own. Delivery passes each step to it and goes on; training never waits
for another rank."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from probe.core.distributed.global_stats import GlobalStats
from probe.core.faults import Faults
from probe.core.records import Batch
from probe.core.worker import Worker

MOST_BYTES = 64 << 20
"""Largest size of the batches that the exchange has still to send, written or not."""
WHERE = "global statistics"
"""Place under which failures are counted."""


class ExchangedStep:
    """Step from its delivery until the exchange is done with it."""

    def __init__(self, stats: GlobalStats, number: int, batches: Sequence[Batch]) -> None:
        self.stats, self.number, self.batches = stats, number, batches
        self.size = sum(column.nbytes for batch in batches for column in batch.columns.values())
        self.result: list[Batch] | None = None
        """Batches with the numbers of whole tensors; None while the exchange is not done."""

    def without(self) -> list[Batch]:
        """Batches without waiting for other ranks."""
        return self.stats.without(self.batches)


class ExchangeThread:
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
        """Total sizes in bytes of steps taken and done. Each is changed by one thread only."""
        self._worker = Worker("probe-exchange", WHERE, faults, things="steps of this rank")

    def add(self, number: int, batches: Sequence[Batch]) -> ExchangedStep:
        """Queue ``batches`` for the thread. If more is pending than there is room for, the exchange ends for good."""
        step = ExchangedStep(self._stats, number, batches)
        self._taken += step.size
        if self._taken - self._done > MOST_BYTES:
            self._stats.give_up(BufferError(f"more than {MOST_BYTES >> 20} MiB wait for ranks that are late"))
        if not self._worker.submit(partial(self._exchange, step)):  # training must not wait for other ranks
            step.result = step.without()
            self._stats.give_up(RuntimeError("there is no thread that could wait for other ranks"))
        return step

    def close(self, timeout: float = 0.0) -> None:
        """End the exchange once the thread is free; wait for that at most ``timeout`` seconds."""
        self._stats.end()
        self._worker.end(self._stats.close)
        self._worker.join(timeout)

    def _exchange(self, step: ExchangedStep) -> None:
        begin, result = time.thread_time(), list(step.batches)
        try:
            result = self._stats.add(step.number, step.batches)
        finally:  # else every later step would wait for this one
            self._spent(time.thread_time() - begin)
            self._done += step.size
            step.result = result
            self._wake()
