"""Work distributed to processes of this machine, with results in order, of which only a few wait at any time."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import islice
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from probe.core.analysis.pieces import Piece, halved, is_of_memory

Item = TypeVar("Item")
Result = TypeVar("Result")

AHEAD = 3
"""Results that may wait, for each process."""
R = TypeVar("R")
APART = 2
"""Processes to ask for so that one piece is worked on outside of this process."""


class WorkersDiedError(RuntimeError):
    """A process was ended from outside; its work, and waiting work, is not done."""

    def __str__(self) -> str:
        return "a worker process was ended from outside (too little memory?)"


def in_order(
    work: Callable[[Item], Result], items: Iterable[Item], processes: int
) -> Iterator[tuple[Item, Result | Exception]]:
    """Yield each item with the result of ``work``, or with the exception that it raised.

    Args:
        work: a function that a new process can import.
        processes: number of processes; with 1, this process does the work.

    Raises:
        WorkersDiedError: if a process was killed.
    """
    if processes == 1:
        yield from ((item, _tried(work, item)) for item in items)
        return
    with Workers(processes) as workers:
        yield from workers.in_order(work, items)


class Workers:
    """Processes for any number of calls, which are started by the first one. They end with the block; at once if it is
    left by an exception, or if this process is killed."""

    def __init__(self, processes: int) -> None:
        self._processes = processes
        self._pool: ProcessPoolExecutor | None = None
        self._held: Connection | None = None

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._end(at_once=kind is not None)

    def in_order(
        self, work: Callable[[Item], Result], items: Iterable[Item]
    ) -> Iterator[tuple[Item, Result | Exception]]:
        """Yield each item with the result of ``work``, or with the exception that it raised.

        Raises:
            WorkersDiedError: if a process was killed; a further call starts others.
        """
        pool, source = self._started(), iter(items)
        waiting: deque[tuple[Item, Future[Result]]] = deque()
        try:
            while True:
                for item in islice(source, self._processes * AHEAD - len(waiting)):
                    waiting.append((item, _submitted(pool, work, item)))
                if not waiting:
                    return
                first, future = waiting.popleft()
                yield first, _result(future)
        except WorkersDiedError:
            if pool is self._pool:
                self._end(at_once=True)
            raise
        finally:
            for _, future in waiting:
                future.cancel()

    def _started(self) -> ProcessPoolExecutor:
        if self._pool is None:
            alive, self._held = multiprocessing.Pipe(duplex=False)
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(
                self._processes, mp_context=context, initializer=_end_with, initargs=(alive,)
            )
        return self._pool

    def _end(self, at_once: bool) -> None:
        """End the processes, if there are any.

        Args:
            at_once: whether they end in the middle of their work.
        """
        pool, lifeline = self._pool, self._held
        self._pool = self._held = None
        if lifeline is not None and at_once:
            lifeline.close()
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=True)
        if lifeline is not None:
            lifeline.close()


def _end_with(lifeline: Connection) -> None:
    """End this process when no process holds the other end of a pipe any more."""

    def wait_and_end() -> None:
        lifeline.poll(None)  # nothing is ever sent: it returns when the other end is closed
        os._exit(1)

    threading.Thread(target=wait_and_end, daemon=True).start()


def _tried(work: Callable[[Item], Result], item: Item) -> Result | Exception:
    try:
        return work(item)
    except Exception as error:  # noqa: BLE001 - one item's failure is not the others'
        return error


def _result(future: Future[Any]) -> Any:
    """Return the result of the work, or the exception that it raised."""
    error = future.exception()
    if isinstance(error, BrokenProcessPool):
        raise WorkersDiedError from error
    return error if isinstance(error, Exception) else future.result()


def _submitted(pool: ProcessPoolExecutor, work: Callable[[Item], Result], item: Item) -> Future[Result]:
    with _main_hidden(), _interrupts_held():
        try:
            return pool.submit(work, item)
        except BrokenProcessPool as error:
            raise WorkersDiedError from error


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Block SIGINT in processes that are started here: a terminal sends it to all, but their parent ends them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _main_hidden() -> Iterator[None]:
    """Hide the program from new processes, which import it: a user's program as documented, without
    ``if __name__ == "__main__"``, would begin the conversion once more there."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


class LocalEngine:
    """Processes of this machine, for one pass over a run after the other. With a width of 1, this process does the
    work."""

    def __init__(self, processes: int) -> None:
        self.width = processes
        self._workers = Workers(processes)

    def __enter__(self) -> LocalEngine:
        return self

    def __exit__(self, *error: Any) -> None:
        """End the processes; at once after an exception."""
        self._workers.__exit__(*error)

    def each(self, function: Callable[[Piece], R], pieces: Iterable[Piece]) -> Iterator[tuple[Piece, R | Exception]]:
        """Yield results in the order of ``pieces``. If a process is killed, the pieces that it may have had are done
        again one by one, so that the others' results are kept."""
        source = iter(pieces)
        while True:
            pending: deque[Piece] = deque()
            try:
                for piece, result in self._in_order(function, _recorded(source, pending)):
                    pending.popleft()
                    yield from self._settled(function, piece, result)
                return
            except WorkersDiedError:
                suspects = list(pending)
            for piece in suspects:
                yield from self._apart(function, piece)

    def _in_order(
        self, function: Callable[[Piece], R], pieces: Iterator[Piece]
    ) -> Iterator[tuple[Piece, R | Exception]]:
        if self.width == 1:
            return in_order(function, pieces, 1)
        return self._workers.in_order(function, pieces)

    def _settled(
        self, function: Callable[[Piece], R], piece: Piece, result: R | Exception
    ) -> Iterator[tuple[Piece, R | Exception]]:
        """Yield the result of a piece, or those of its halves if it did not fit into memory."""
        failed = isinstance(result, WorkersDiedError) or (isinstance(result, Exception) and is_of_memory(result))
        halves = halved(piece) if failed else ()
        if not halves:
            yield piece, result
        for half in halves:
            yield from self._apart(function, half)

    def _apart(self, function: Callable[[Piece], R], piece: Piece) -> Iterator[tuple[Piece, R | Exception]]:
        """Do one piece in a process of its own, if there are to be any."""
        try:
            [(_, result)] = in_order(function, [piece], min(self.width, APART))
        except WorkersDiedError as died:
            result = died
        yield from self._settled(function, piece, result)


def _recorded(source: Iterator[Piece], pending: deque[Piece]) -> Iterator[Piece]:
    for piece in source:
        pending.append(piece)
        yield piece
