"""The queue between a step and its files."""

from __future__ import annotations

import queue
import threading

from probe.core.faults import Faults
from probe.core.output.delivery import Delivery

SECONDS = 120.0


class Gate:
    """Work that waits until it is let go, and notes that it began and that it is done."""

    def __init__(self) -> None:
        self.began, self.open, self.done = threading.Event(), threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.began.set()
        assert self.open.wait(SECONDS)
        self.done.set()


def test_work_is_done_in_order() -> None:
    """Submitted work is done one after the other, and flush waits for all of it."""
    done: list[int] = []
    delivery = Delivery(3, "wait", Faults())
    for number in range(50):
        assert delivery.submit(lambda number=number: done.append(number))  # type: ignore[misc]
    assert delivery.flush(SECONDS)
    assert done == list(range(50))
    delivery.close(SECONDS)


def test_a_full_queue_holds_training_up() -> None:
    """With "wait", a submit beyond the queue's size returns only when there is room, and nothing is lost."""
    faults, gate = Faults(), Gate()
    delivery = Delivery(2, "wait", faults)
    done: queue.SimpleQueue[int] = queue.SimpleQueue()
    delivery.submit(gate)
    delivery.submit(lambda: done.put(1))
    assert gate.began.wait(SECONDS)
    third = threading.Thread(target=lambda: delivery.submit(lambda: done.put(2)))
    third.start()
    third.join(0.05)
    assert third.is_alive()
    gate.open.set()
    third.join(SECONDS)
    assert [done.get(timeout=SECONDS) for _ in range(2)] == [1, 2]
    delivery.close(SECONDS)
    assert faults.counts == {}


def test_a_full_queue_may_drop() -> None:
    """With "drop", a submit to a full queue returns at once, and the dropped work is counted."""
    faults, gate = Faults(), Gate()
    delivery = Delivery(2, "drop", faults)
    assert delivery.submit(gate)
    assert delivery.submit(lambda: None)
    assert not delivery.submit(lambda: None)
    assert not delivery.submit(lambda: None)
    gate.open.set()
    assert delivery.flush(SECONDS)
    assert delivery.submit(lambda: None)
    delivery.close(SECONDS)
    assert faults.counts == {"delivery: steps dropped because the queue was full": 2}


def test_work_that_raises_is_counted() -> None:
    """The thread survives any exception of the work, even SystemExit."""
    faults = Faults()
    delivery = Delivery(4, "wait", faults)
    done: list[int] = []
    for error in (ValueError, SystemExit):

        def fail(error: type[BaseException] = error) -> None:
            raise error

        delivery.submit(fail)
    delivery.submit(lambda: done.append(1))
    delivery.close(SECONDS)
    assert done == [1]
    assert faults.counts == {"delivery: ValueError": 1, "delivery: SystemExit": 1}


def test_flush_gives_up_at_its_deadline() -> None:
    """A flush that takes too long returns false and loses nothing; a close counts the work that it leaves undone."""
    faults, gate = Faults(), Gate()
    delivery = Delivery(4, "wait", faults)
    delivery.submit(gate)
    delivery.submit(lambda: None)
    assert not delivery.flush(0.01)
    assert faults.counts == {}
    delivery.close(0.01)
    assert faults.counts == {"delivery: steps not written before the deadline": 2}
    gate.open.set()
    assert gate.done.wait(SECONDS)


def test_close_ends_the_thread() -> None:
    """After close there is no thread left, and closing again is harmless."""
    before = set(threading.enumerate())
    delivery = Delivery(1, "wait", Faults())
    assert set(threading.enumerate()) != before
    delivery.close(SECONDS)
    delivery.close(SECONDS)
    assert set(threading.enumerate()) == before


def test_faults_count_by_place_and_kind() -> None:
    """Faults are counted by where and what; the text of an error does not make another kind."""
    faults = Faults()
    for number in range(3):
        faults.note("sink", OSError(f"number {number}"))
    faults.note("sink", ValueError("another"))
    faults.lost("rows", 5)
    assert faults.counts == {"sink: OSError": 3, "sink: ValueError": 1, "rows": 5}
