"""The worker: one thread with a queue, with room, a flush, an end, and the failures of its work."""

from __future__ import annotations

import gc
import os
import queue
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from probe.core.faults import Faults
from probe.core.worker import Worker
from tests.interrupts import interrupt, main_thread_runs

SECONDS = 120.0


class Gate:
    """Work that waits until it is let go, and notes that it began and that it is done."""

    def __init__(self) -> None:
        self.began, self.open, self.done = threading.Event(), threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.began.set()
        assert self.open.wait(SECONDS)
        self.done.set()


def worker(faults: Faults | None = None, **options: Any) -> Worker:
    """A worker whose failures are counted under ``work``."""
    return Worker("probe-work", "work", faults or Faults(), **options)


def nothing() -> None:
    """Work without effect."""


def interrupting(call: Callable[[], object]) -> None:
    """Call ``call`` in the main thread and interrupt its wait as Ctrl-C does."""
    interrupt(call, lambda: main_thread_runs("_passes") or main_thread_runs("submit"))


@pytest.fixture
def no_thread(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A full process table: no thread can be started."""

    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    return monkeypatch


def test_work_is_done_in_order() -> None:
    """Submitted work is done one after the other, and flush waits for all of it."""
    done: list[int] = []
    one = worker(room=3, when_full="wait")
    for number in range(50):
        assert one.submit(lambda number=number: done.append(number))  # type: ignore[misc]
    assert one.flush(SECONDS)
    assert done == list(range(50))
    one.close(SECONDS)


def test_a_full_queue_holds_training_up() -> None:
    """With "wait", a submit beyond the room returns only when there is some, and nothing is lost."""
    faults, gate = Faults(), Gate()
    one = worker(faults, room=2, when_full="wait")
    done: queue.SimpleQueue[int] = queue.SimpleQueue()
    one.submit(gate)
    one.submit(lambda: done.put(1))
    assert gate.began.wait(SECONDS)
    third = threading.Thread(target=lambda: one.submit(lambda: done.put(2)))
    third.start()
    third.join(0.05)
    assert third.is_alive()
    gate.open.set()
    third.join(SECONDS)
    assert [done.get(timeout=SECONDS) for _ in range(2)] == [1, 2]
    one.close(SECONDS)
    assert faults.counts == {}


def test_a_full_queue_may_drop() -> None:
    """With "drop", a submit to a full queue returns at once, and the dropped work is counted; what must be done is."""
    faults, gate, done = Faults(), Gate(), list[int]()
    one = worker(faults, room=2)
    assert one.submit(gate)
    assert one.submit(nothing)
    assert not one.submit(nothing)
    assert not one.submit(nothing)
    assert one.submit(lambda: done.append(1), must=True)
    gate.open.set()
    assert one.flush(SECONDS)
    assert done == [1]
    assert one.submit(nothing)
    one.close(SECONDS)
    assert not one.submit(nothing)
    assert faults.counts == {
        "work: steps dropped because the queue was full": 2,
        "work: steps after the end": 1,
    }


def test_work_that_raises_is_counted() -> None:
    """The thread survives any exception of the work, even SystemExit."""
    faults = Faults()
    one = worker(faults, room=4, when_full="wait")
    done: list[int] = []
    for error in (ValueError, SystemExit):

        def fail(error: type[BaseException] = error) -> None:
            raise error

        one.submit(fail)
    one.submit(lambda: done.append(1))
    one.close(SECONDS)
    assert done == [1]
    assert faults.counts == {"work: ValueError": 1, "work: SystemExit": 1}


@pytest.mark.parametrize("end", ["flush", "close"])
def test_a_rest_is_cut_short(end: str) -> None:
    """A flush and the end do not wait until the thread has rested, and what was submitted meanwhile is done in
    order."""
    done: list[int] = []
    one = worker()
    one.rest = 3600.0
    for number in range(4):
        one.submit(partial(done.append, number))
        if number == 1:
            assert one.flush(SECONDS)
    begun = time.monotonic()
    if end == "flush":
        assert one.flush(SECONDS)
    one.close(SECONDS)
    assert done == [0, 1, 2, 3]
    assert time.monotonic() - begun < SECONDS


def test_flush_gives_up_at_its_deadline() -> None:
    """A flush that takes too long returns false and loses nothing; a close counts the work that it leaves undone, once
    however often it is called."""
    faults, gate = Faults(), Gate()
    one = worker(faults, room=4)
    one.submit(gate)
    one.submit(nothing)
    one.submit(nothing, must=True)
    assert not one.flush(0.01)
    assert faults.counts == {}
    one.close(0.01)
    one.close(0.01)
    assert faults.counts == {"work: steps not written before the deadline": 2}
    gate.open.set()
    assert gate.done.wait(SECONDS)
    assert one.join(SECONDS)


def test_a_flush_of_its_own_thread_waits_for_nothing() -> None:
    """Work that flushes the worker that does it would wait for itself."""
    one, answers = worker(room=4), queue.SimpleQueue[bool]()
    one.submit(lambda: answers.put(one.flush(SECONDS)))
    assert answers.get(timeout=SECONDS / 2) is False
    one.close(SECONDS)


def test_close_ends_the_thread() -> None:
    """After close there is no thread left, and closing again is harmless."""
    before = set(threading.enumerate())
    one = worker(room=1)
    assert set(threading.enumerate()) != before
    one.close(SECONDS)
    one.close(SECONDS)
    assert set(threading.enumerate()) == before


@pytest.mark.parametrize("wait", ["flush", "close", "join"])
def test_an_interrupted_wait_can_be_repeated(wait: str) -> None:
    """Ctrl-C ends the wait alone: a later close finishes the work, and what comes last, once."""
    faults, gate, done = Faults(), Gate(), list[str]()
    one = worker(faults, room=4)
    one.submit(gate)
    one.submit(lambda: done.append("work"))
    last: Callable[[], None] = lambda: done.append("last")  # noqa: E731
    if wait == "join":
        assert one.end(last)
    waits = {"flush": one.flush, "close": lambda seconds: one.close(seconds, last), "join": one.join}
    interrupting(lambda: waits[wait](SECONDS))
    gate.open.set()
    one.close(SECONDS, last)
    assert done == ["work", "last"]
    assert faults.counts == {}


def test_an_interrupt_takes_no_room() -> None:
    """At whatever line it comes: with less room after each, training would wait forever in the end."""
    submitting = worker(room=2)
    code = Worker.submit.__code__
    for line in sorted({line for _, _, line in code.co_lines() if line is not None}):

        def interrupted(frame: Any, event: str, _: object, line: int = line) -> Any:
            if frame.f_code is code and event == "line" and frame.f_lineno == line:
                raise KeyboardInterrupt
            return interrupted if frame.f_code is code else None

        for _ in range(3):
            before = sys.gettrace()
            sys.settrace(interrupted)
            with suppress(KeyboardInterrupt):
                submitting.submit(int)
            sys.settrace(before)
            assert submitting.flush(SECONDS)
    assert submitting.submit(int)
    submitting.close(SECONDS)


def test_it_looks_around_when_that_is_due() -> None:
    """At first after the time set, then after the time that each look returns, at once when it is woken, and after a
    while if a look has raised; work in between delays it by no more than itself."""
    looks, faults = queue.SimpleQueue[int](), Faults()
    pauses = iter([0.0, None, ZeroDivisionError, None])

    def look() -> float | None:
        looks.put(1)
        pause = next(pauses)
        if pause is ZeroDivisionError:
            raise pause
        return pause  # type: ignore[return-value] # a number or None

    one = worker(faults, look=look, due=0.0)
    for _ in range(2):
        looks.get(timeout=SECONDS)
    assert one.wake()
    for _ in range(2):
        looks.get(timeout=SECONDS)
    one.close(SECONDS)
    assert looks.empty()
    assert not one.wake()
    assert faults.counts == {"work: ZeroDivisionError": 1}


def test_a_forked_child_has_no_thread() -> None:
    """All its methods return at once, and neither work nor look of the parent is done twice."""
    gate, done = Gate(), list[int]()
    one = worker(room=1, when_full="wait", inline=True, look=lambda: done.append(0))
    one.submit(gate)
    assert gate.began.wait(SECONDS)
    child = os.fork()
    if child == 0:
        answers = [one.here, one.submit(lambda: done.append(1)), one.wake(), one.end(), not one.flush(SECONDS)]
        one.close(SECONDS)
        os._exit(len(done) + any(answers))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    gate.open.set()
    one.close(SECONDS)
    assert done == []


def test_without_a_thread_the_caller_does_the_work(no_thread: pytest.MonkeyPatch) -> None:
    """In order, also if one work submits another; a failure is counted and not raised, and nothing is lost."""
    faults, done = Faults(), list[str]()
    one = worker(faults, room=1, when_full="wait", inline=True)

    def first() -> None:
        one.submit(lambda: done.append("second"), must=True)
        done.append("first")

    assert one.submit(first)
    assert one.submit(lambda: 1 // 0)
    assert one.flush(SECONDS)
    one.close(SECONDS, lambda: done.append("last"))
    assert done == ["first", "second", "last"]
    assert faults.counts == {"work: RuntimeError": 1, "work: ZeroDivisionError": 1}


def test_without_a_thread_work_may_be_dropped(no_thread: pytest.MonkeyPatch) -> None:
    """What may take any time is neither done nor silently lost."""
    faults, done = Faults(), list[str]()
    one = worker(faults, look=lambda: done.append("look"), due=0.0, things="calls")
    assert not one.submit(lambda: done.append("work"))
    assert not one.wake()
    assert one.flush(SECONDS)
    assert not one.end(lambda: done.append("last"))
    one.close(SECONDS)
    assert done == []
    assert faults.counts == {"work: RuntimeError": 1, "work: calls dropped because no thread could be started": 1}


def test_a_thread_is_started_as_soon_as_there_is_room_for_one(
    no_thread: pytest.MonkeyPatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call after a while tries again; from then on the thread does the work."""
    monkeypatch.setattr("probe.core.worker.RETRY_SECONDS", 0.0)
    names: list[str] = []
    one = worker(room=1, when_full="wait", inline=True)
    one.submit(lambda: names.append(threading.current_thread().name))
    no_thread.undo()
    one.submit(lambda: names.append(threading.current_thread().name))
    one.close(SECONDS)
    assert names == [threading.current_thread().name, "probe-work"]


def test_an_interrupt_of_the_user_ends_the_call_that_does_the_work(no_thread: pytest.MonkeyPatch) -> None:
    """Ctrl-C during work of the calling thread is raised, as anywhere; the end is left to the next close."""
    done: list[str] = []

    def last() -> None:
        done.append("last")
        if len(done) == 1:
            raise KeyboardInterrupt

    one = worker(inline=True)
    with pytest.raises(KeyboardInterrupt):
        one.close(SECONDS, last)
    one.close(SECONDS, last)
    one.close(SECONDS, last)
    assert done == ["last", "last"]


def test_no_work_is_kept_alive_after_it_is_done() -> None:
    """The thread holds no reference to the last work while it waits for the next."""

    class Held:
        """Something that work refers to."""

    held, one = Held(), worker(room=1)
    reference = weakref.ref(held)
    one.submit(lambda held=held: None)  # type: ignore[misc]
    assert one.flush(SECONDS)
    del held
    gc.collect()
    assert reference() is None
    one.close(SECONDS)


@pytest.mark.parametrize(("awaited", "printed"), [(True, "done\n"), (False, "")])
def test_the_end_of_the_process_waits_if_it_is_asked_to(awaited: bool, printed: str) -> None:
    """For the last work of workers that nobody closes; other threads end with the process."""
    program = f"""
import os, threading
from probe.core.faults import Faults
from probe.core.worker import Worker
gate = threading.Event()
worker = Worker("w", "w", Faults())
worker.submit(gate.wait)
worker.end(lambda: os.write(1, b"done\\n"), awaited={awaited})
import atexit
atexit.register(gate.set if {awaited} else int)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=SECONDS)
    assert run.stdout == printed
