"""Work on the rows of a run: on all of them here, or on pieces by an engine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from probe.core.analysis.engines import PieceEngine, read_each
from probe.core.analysis.pieces import Piece, by_ranks, by_steps
from probe.core.storage.directories import RankDirectory, RecordedRun
from probe.core.storage.duckdb_reader import Rows
from probe.core.storage.manifest import Manifest

R = TypeVar("R")


@dataclass(frozen=True)
class Passes:
    """Application of functions of rows to a run.

    Args:
        engine: engine that reads pieces of the run; None to read the whole run here.
        least: number of pieces at least, if there are as many ranks or steps.
        slim: directory of a rank as its piece has it.
    """

    run: RecordedRun
    rows: Rows
    engine: PieceEngine | None = None
    least: int = 1
    slim: Callable[[RankDirectory], RankDirectory] = lambda directory: directory._replace(manifest=Manifest())

    def over_ranks(self, function: Callable[[Rows], R], signals: Iterable[str] | None = None) -> Iterator[R]:
        """Yield results of ``function`` for pieces of whole ranks, in order of rank."""
        if self.engine is None:
            yield function(self.rows)
            return
        pieces = by_ranks(self.run, self.rows, signals=signals, least=self._least, manifests=True)
        slim = [replace(piece, directories=tuple(map(self.slim, piece.directories))) for piece in pieces]
        yield from read_each(self.engine, _OfPiece(function), slim, self.rows.problems)

    def over_steps(self, function: Callable[[Rows], R], signals: Iterable[str]) -> Iterator[R]:
        """Yield results of ``function`` for ranges of steps, in their order; each has all ranks."""
        if self.engine is None:
            yield function(self.rows)
            return
        pieces = by_steps(self.run, self.rows, signals=signals, least=self._least)
        yield from read_each(self.engine, _OfPiece(function), pieces, self.rows.problems)

    def over_groups(
        self, function: Callable[[Rows, tuple[int, ...]], R], groups: Sequence[tuple[int, ...]], signals: Iterable[str]
    ) -> Iterator[R]:
        """Yield results of ``function`` for groups of ranks, in their order; it is called with rows and the ranks."""
        if self.engine is None:
            yield from (function(self.rows, group) for group in groups)
            return
        (whole,) = by_ranks(self.run, self.rows, most_bytes=sys.maxsize, signals=signals, cuts=())
        pieces = [whole.of_ranks(group) for group in groups]
        yield from read_each(self.engine, _OfGroup(function), pieces, self.rows.problems)

    @property
    def _least(self) -> int:
        return max(self.least, self.engine.width if self.engine else 1)


@dataclass(frozen=True)
class _OfPiece(Generic[R]):
    """A function of rows, called with the rows of a piece."""

    function: Callable[[Rows], R]

    def __call__(self, rows: Rows, _: Piece) -> R:
        return self.function(rows)


@dataclass(frozen=True)
class _OfGroup(Generic[R]):
    """A function of rows and ranks, called with the rows of a piece and its ranks."""

    function: Callable[[Rows, tuple[int, ...]], R]

    def __call__(self, rows: Rows, piece: Piece) -> R:
        return self.function(rows, piece.ranks)
