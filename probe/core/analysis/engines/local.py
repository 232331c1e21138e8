"""Pieces on this machine: in this process, or in several."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from probe.core.analysis.engines.workers import Workers, WorkersDiedError, in_order
from probe.core.analysis.pieces import Piece, halved, is_of_memory

R = TypeVar("R")

APART = 2
"""Processes to ask for so that one piece is worked on outside of this process."""


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
