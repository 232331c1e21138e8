"""Steps that wait for other ranks: in which order they are written, how many wait, and what happens to the rest."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from probe.core.distributed import whole_tensors
from probe.core.distributed.global_stats import GlobalStats
from probe.core.faults import Faults
from probe.core.instrumentation.context import Listeners
from probe.core.output.pipeline import LATE, WAITING, SnapshotListener, Writer
from probe.core.output.run_output import delivery
from probe.core.records import Batch, Coverage, Snapshot
from tests.core.distributed.test_global_stats import batch_of
from tests.waiting import wait_for

SECONDS = 120.0


class AbsentError(Exception):
    """The other rank did not come."""


class Other:
    """The way to another rank, which comes when it is let go: with the same rows, or not at all."""

    def __init__(self) -> None:
        self.awake, self.comes, self.awaited = threading.Event(), True, threading.Event()
        self.received: Sequence[bytes] = ()

    def meet(self, ranks: Sequence[int], where: str, said: bytes, seconds: float) -> Other:
        self.received = [said, said]
        return self

    def gather(self, payload: Any) -> Any:
        self.awaited.set()
        assert self.awake.wait(SECONDS)
        if not self.comes:
            raise AbsentError
        return np.stack([payload, payload])

    def close(self) -> None:
        """Nothing is held."""


class Writing:
    """Delivery with an exchange: what is written, in order."""

    def __init__(self, other: Other) -> None:
        self.faults, self.written = Faults(), list[tuple[int, str]]()
        self.delivery = delivery(4, "wait", self.faults)
        listeners: Listeners[SnapshotListener] = Listeners()
        listeners.add(self._note)
        self.writer = Writer(0, None, self.faults, self.delivery, listeners=listeners)
        self.writer.begin_exchange(self.stats_with(other))

    def stats_with(self, other: Any) -> GlobalStats:
        return GlobalStats(other, "run 0", "", ["norm"], SECONDS, self.faults)

    def submit(self, step: int) -> None:
        """As training does it."""

        def work() -> None:
            whole = replace(batch_of(0, 2, step), coverage=(Coverage((1,), "0:1", (0, 1)),) * 2)
            self.writer.deliver(Snapshot(step, 0, 0.0, [whole], ("norm",)))

        self.delivery.submit(work)

    def _note(self, snapshot: Snapshot) -> None:
        self.written.append((snapshot.step, known(snapshot.batches)))

    def end(self) -> None:
        self.writer.wait_no_longer()
        self.delivery.submit(self.writer.advance, must=True)
        self.delivery.close(SECONDS)
        self.writer.close_exchange(SECONDS)


def known(batches: Sequence[Batch]) -> str:
    """Kind of the rows of wholes: ``whole``, ``missing`` or ``none``."""
    (batch,) = batches
    if "merged" not in batch.columns:
        return "none"
    return "missing" if np.isnan(batch.columns["global_norm"]).all() else "whole"


@pytest.fixture
def other() -> Other:
    return Other()


def test_delivery_goes_on_while_a_rank_is_late(other: Other) -> None:
    """Whatever the size of the queue: the latest steps wait, those before them are written without the other rank, and
    all that come after it are whole. Each is written once, in order."""
    writing, steps = Writing(other), 2 * WAITING + 5
    for step in range(steps):
        writing.submit(step)
    assert writing.delivery.flush(SECONDS)
    early = steps - WAITING
    assert writing.written == [(step, "missing") for step in range(early)]
    assert writing.faults.counts == {LATE: early}
    other.awake.set()
    wait_for(lambda: len(writing.written) == steps)
    assert writing.written[early:] == [(step, "whole") for step in range(early, steps)]
    writing.end()
    assert writing.faults.counts == {LATE: early}
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("probe-exchange")]


def test_a_rank_that_does_not_come_is_waited_for_once(other: Other) -> None:
    """The step at which it was missing has no numbers of the whole, those after it have no columns for them."""
    other.comes = False
    writing = Writing(other)
    for step in range(4):
        writing.submit(step)
    assert writing.delivery.flush(SECONDS)
    assert writing.written == []
    other.awake.set()
    wait_for(lambda: len(writing.written) == 4)
    assert writing.written == [(0, "missing"), (1, "none"), (2, "none"), (3, "none")]
    assert writing.faults.counts == {"global statistics: AbsentError": 1}
    writing.end()


def test_what_waits_for_late_ranks_is_bounded(other: Other, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond so many bytes the exchange ends for good, and everything is written."""
    a_step = sum(column.nbytes for column in batch_of(0, 2).columns.values())
    monkeypatch.setattr(whole_tensors, "MOST_BYTES", 50 * a_step)
    writing = Writing(other)
    writing.submit(0)
    assert other.awaited.wait(SECONDS)  # else the exchange may end before it has begun
    for step in range(1, 60):
        writing.submit(step)
    assert writing.delivery.flush(SECONDS)
    other.awake.set()
    wait_for(lambda: len(writing.written) == 60)
    assert [step for step, _ in writing.written] == [*range(60)]
    assert writing.faults.counts == {LATE: 60 - WAITING, "global statistics: BufferError": 1}
    assert writing.written[-1] == (59, "none")
    writing.end()


def test_steps_that_are_done_wait_no_longer(other: Other, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound is on the bytes that wait at one time: ranks that come in time exchange any number of steps."""
    a_step = sum(column.nbytes for column in batch_of(0, 2).columns.values())
    monkeypatch.setattr(whole_tensors, "MOST_BYTES", 3 * a_step)
    writing, steps = Writing(other), 8
    other.awake.set()
    for step in range(steps):
        writing.submit(step)
        wait_for(lambda after=step + 1: len(writing.written) == after)
    writing.end()
    assert writing.written == [(step, "whole") for step in range(steps)]
    assert writing.faults.counts == {}


def test_what_changes_has_its_turn_after_what_was_collected_before(other: Other) -> None:
    """Steps of the configuration before are written first, though another exchange is done earlier."""
    writing, awake = Writing(other), Other()
    awake.awake.set()
    writing.submit(0)

    def change() -> None:
        exchange = writing.writer.exchange_thread(writing.stats_with(awake))
        writing.writer.change_exchange(exchange, lambda: writing.written.append((-1, "changed")))

    writing.delivery.submit(change, must=True)
    writing.submit(1)
    assert writing.delivery.flush(SECONDS)
    assert writing.written == []
    other.awake.set()
    wait_for(lambda: len(writing.written) == 3)
    assert writing.written == [(0, "whole"), (-1, "changed"), (1, "whole")]
    writing.end()


def test_without_a_thread_no_rank_is_waited_for(other: Other, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where none can be started every step is written without the numbers of whole tensors, and that is counted."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    writing = Writing(other)
    for step in range(2):
        writing.submit(step)
    writing.end()
    assert writing.written == [(0, "missing"), (1, "none")]
    assert not other.awaited.is_set()
    assert writing.faults.counts == {
        "delivery: RuntimeError": 1,
        "global statistics: RuntimeError": 2,  # the thread, and the end of the exchange
        "global statistics: steps of this rank dropped because no thread could be started": 2,
    }


def test_the_end_of_a_run_loses_no_step(other: Other) -> None:
    """Waiting steps are written as they are."""
    writing = Writing(other)
    for step in range(3):
        writing.submit(step)
    assert writing.delivery.flush(SECONDS)
    writing.writer.wait_no_longer()
    writing.delivery.submit(writing.writer.advance, must=True)
    writing.delivery.close(SECONDS)
    assert writing.written == [(step, "missing") for step in range(3)]
    assert writing.faults.counts == {LATE: 3}
    other.awake.set()
    writing.writer.close_exchange(SECONDS)
