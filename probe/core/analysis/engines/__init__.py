"""Engines: a function applied to the pieces of a run, on this machine (:mod:`workers`) or on a cluster (:mod:`ray`).

A function is one of the package, takes one piece and returns what can be pickled and is small. Its result may depend on
nothing but the rows of the piece, since a piece may be read twice, or cut and read in parts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Generic, NamedTuple, Protocol, TypeVar

from probe.core.analysis.pieces import Piece, opened
from probe.core.language import invalid, message
from probe.core.storage.duckdb_reader import Rows
from probe.core.storage.problems import Problems

R = TypeVar("R")

ADDRESS = "RAY_ADDRESS"
"""Environment variable with the address of a Ray cluster, which is used if no engine is named."""


class PieceEngine(Protocol):
    """Something that applies a function to pieces."""

    @property
    def width(self) -> int:
        """Number of pieces that are worked on at a time."""

    def each(self, function: Callable[[Piece], R], pieces: Iterable[Piece]) -> Iterator[tuple[Piece, R | Exception]]:
        """Yield each piece with its result, or with the exception that ``function`` raised, as they come; few pieces
        are taken in advance. In place of a piece that does not fit into memory, or with which a worker dies, its halves
        are yielded."""


class PiecesDone(NamedTuple):
    """Pieces that are done, for progress."""

    done: float
    total: int
    """0 if unknown."""
    bytes: int
    rows: int
    seconds: float

    @property
    def seconds_left(self) -> float | None:
        """Estimate; None if unknown."""
        return self.seconds / self.done * max(self.total - self.done, 0) if self.done and self.total else None


PieceObserver = Callable[[PiecesDone], None]


def engine_of(
    spec: str | None = None,
    processes: int | None = None,
    progress: PieceObserver | None = None,
    environ: Mapping[str, str] = os.environ,
) -> AbstractContextManager[PieceEngine]:
    """Return the engine that ``spec`` names.

    Args:
        spec: ``local``, ``ray`` (the cluster of ``RAY_ADDRESS``, else one of this machine), or an address of a cluster
            such as ``ray://host:10001`` or ``host:6379``; None for Ray if ``RAY_ADDRESS`` is set, else local.
        processes: pieces at a time; None for one with ``local`` (this process), for all of a cluster with Ray.
        progress: called after each piece.

    Raises:
        ValueError: if there is no such engine, or the cluster has another version of probe.
        ImportError: if Ray is asked for and not installed.
    """
    return _engine_of(spec, processes, progress, environ)


@contextmanager
def _engine_of(
    spec: str | None, processes: int | None, progress: PieceObserver | None, environ: Mapping[str, str]
) -> Iterator[PieceEngine]:
    if processes is not None and processes < 1:
        raise invalid("-j: expected 1 or more; got {processes}", processes=processes)
    name = spec or ("ray" if environ.get(ADDRESS) else "local")
    if name == "local":
        from probe.core.analysis.engines.workers import LocalEngine

        with LocalEngine(processes or 1) as local:
            yield _observed(local, progress)
        return
    if name != "ray" and ":" not in name:
        raise invalid(
            "--engine: expected local, ray or an address such as ray://host:10001; got {name!r}; or leave it out",
            name=name,
        )
    from probe.core.analysis.engines.ray import ray_engine

    with ray_engine(environ.get(ADDRESS) if name == "ray" else name, processes) as engine:
        yield _observed(engine, progress)


def mapped(
    engine: PieceEngine, function: Callable[[Piece], R], pieces: Iterable[Piece], problems: Problems
) -> Iterator[R]:
    """Yield the results of ``function`` in the order of ``pieces``; pieces that failed are recorded in ``problems``.

    Raises:
        ImportError: if a package is missing where the function ran.
    """
    waiting: dict[tuple[int, ...], tuple[Piece, R | Exception]] = {}
    asked: dict[int, Piece] = {}
    numbered = _Numbered(pieces, asked)
    at = 0
    for done, result in engine.each(function, numbered):
        waiting[done.place] = done, result
        while places := _complete(waiting, (at,)):
            del asked[at]
            at += 1
            for place in places:
                yield from _kept(*waiting.pop(place), problems)
    for n, piece in sorted(asked.items()):  # no engine should lose one; if it does, the answer shows it
        places = sorted(place for place in waiting if place[0] == n)
        if not _complete(waiting, (n,)):
            text = (
                "{piece}: there is no result of some of it: left out"
                if places
                else "{piece}: there is no result: left out"
            )
            problems.add(piece.root, message(text, piece=piece))
        for place in places:
            yield from _kept(*waiting.pop(place), problems)


def read_each(
    engine: PieceEngine, function: Callable[[Rows, Piece], R], pieces: Iterable[Piece], problems: Problems
) -> Iterator[R]:
    """Yield the results of ``function``, which is called with the opened rows of each piece, in the order of
    ``pieces``; the problems of all pieces are recorded in ``problems``, in the same order."""
    for result, piece_problems in mapped(engine, _Reading(function), pieces, problems):
        problems.extend(piece_problems)
        yield result


@dataclass(frozen=True)
class _Reading(Generic[R]):
    """A function of rows as a function of a piece."""

    function: Callable[[Rows, Piece], R]

    def __call__(self, piece: Piece) -> tuple[R, Problems]:
        problems = Problems()
        with opened(piece, problems) as rows:
            result = self.function(rows, piece)
        return result, problems


class _Numbered:
    """Pieces with their places; those that were asked for are recorded."""

    def __init__(self, pieces: Iterable[Piece], asked: dict[int, Piece]) -> None:
        self._pieces, self._asked = pieces, asked

    def __iter__(self) -> Iterator[Piece]:
        for n, piece in enumerate(self._pieces):
            self._asked[n] = replace(piece, place=(n,))
            yield self._asked[n]

    def __len__(self) -> int:
        return len(self._pieces) if isinstance(self._pieces, Sized) else 0


def _complete(waiting: Mapping[tuple[int, ...], object], place: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return the places of the parts of a piece, in order, if all of them are there; else none."""
    if place in waiting:
        return [place]
    if not any(key[: len(place)] == place for key in waiting):
        return []
    halves = [_complete(waiting, (*place, half)) for half in (0, 1)]
    return [*halves[0], *halves[1]] if all(halves) else []


def _kept(piece: Piece, result: R | Exception, problems: Problems) -> Iterator[R]:
    if isinstance(result, ImportError):
        raise result
    if isinstance(result, Exception):
        problems.add(piece.root, message("{error}: left out", error=f"{piece}: {type(result).__name__}: {result}"))
    else:
        yield result


def _observed(engine: PieceEngine, progress: PieceObserver | None) -> PieceEngine:
    return engine if progress is None else _ObservedEngine(engine, progress)


class _ObservedEngine:
    """An engine whose progress is reported."""

    def __init__(self, engine: PieceEngine, progress: PieceObserver) -> None:
        self._engine, self._progress = engine, progress

    @property
    def width(self) -> int:
        return self._engine.width

    def each(self, function: Callable[[Piece], R], pieces: Iterable[Piece]) -> Iterator[tuple[Piece, R | Exception]]:
        start = time.monotonic()
        done = PiecesDone(0.0, len(pieces) if isinstance(pieces, Sized) else 0, 0, 0, 0.0)
        for piece, result in self._engine.each(function, pieces):
            part = 0.5 ** max(len(piece.place) - 1, 0)  # a half
            done = done._replace(
                done=done.done + part,
                bytes=done.bytes + piece.bytes,
                rows=done.rows + piece.rows,
                seconds=time.monotonic() - start,
            )
            self._progress(done)
            yield piece, result
