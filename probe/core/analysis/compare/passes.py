"""Loop over the pieces of a comparison: three times, each time by the workers of an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeVar, cast

from probe.core.analysis.compare.census import Census, Wanted, count
from probe.core.analysis.compare.compared_piece import ComparedPiece, PieceResult, Side, span
from probe.core.analysis.compare.differences import DifferenceTables, measure
from probe.core.analysis.compare.first_difference import DifferingRow, first_rows, request
from probe.core.analysis.engines import PieceEngine, mapped
from probe.core.analysis.pieces import Piece
from probe.core.storage.problems import Problem, Problems

R = TypeVar("R")


class ComparisonPasses:
    """Loop over the pieces of a comparison; data that could not be read are recorded."""

    def __init__(self, engine: PieceEngine, pieces: Sequence[ComparedPiece]) -> None:
        self._engine, self._pieces = engine, pieces
        self.failed = Problems()
        """Pieces without a result."""
        self._of_opening: dict[tuple[int, ...], PieceResult] = {}
        self._of_order: list[tuple[tuple[int, ...], Problems]] = []
        self._of_lines: list[PieceResult] = []
        self._incomplete: set[int] = set()

    def count(self, request: Wanted) -> Census:
        """Count the rows of both runs."""
        census = Census()
        for counted, done in self._each(partial(count, request=request), self._pieces):
            census.merge(counted)
            self._of_opening.setdefault(done.place, done)
        return census

    def measure(self, tables: DifferenceTables, census: Census) -> None:
        """Measure every pair of rows, and those of signals with duplicate rows once more."""
        self._measure(tables, tuple(tables.pairing.signals), False)
        again = tables.find_duplicated(census)
        if again:
            self._measure(tables, again, True)

    def _measure(self, tables: DifferenceTables, signals: Sequence[str], duplicated: bool) -> None:
        work = partial(measure, pairing=tables.pairing, bins=tables.bins, signals=signals, duplicated=duplicated)
        for measured, _ in self._each(work, self._pieces):
            tables.add(measured)
        tables.merge()

    def first_rows(
        self, tables: DifferenceTables, most: int, rank: int
    ) -> tuple[list[DifferingRow], dict[str, dict[str, int]]]:
        """Return the rows that differ first, and for each signal the positions of its names in the order in which
        ``rank`` has executed them in the first step."""
        wanted = request(tables, most, (rank, tables.pairing.steps[0]))
        work = partial(first_rows, pairing=tables.pairing, request=wanted, duplicated=tuple(tables.duplicated))
        rows: list[tuple[tuple[int, ...], DifferingRow]] = []
        executed: dict[str, dict[str, int]] = {}
        for rows_found, _ in self._each(work, [piece for piece in self._pieces if wanted.concerns(piece)]):
            rows = sorted([*rows, *rows_found.rows], key=lambda pair: pair[0])[:most]
            executed.update(rows_found.executed)
            self._of_order += rows_found.problems
        return [row for _, row in rows], executed

    def incomplete(self) -> frozenset[int]:
        """Return the ranks of A of which a piece has no result."""
        return frozenset(self._incomplete)

    def add_problems(self, a: Side, b: Side) -> None:
        """Record the problems of both runs: those of files, then of the order of rows, then of lines."""
        opening = list(self._of_opening.values())
        for of_a in opening:
            a.problems.extend(of_a.a.opening)
        for _, problems in sorted(self._of_order, key=lambda pair: pair[0]):
            a.problems.extend(problems)
        a.problems.extend(_by_file(done.a.reading for done in self._of_lines))
        for of_b in opening:
            b.problems.extend(of_b.b.opening)
        b.problems.extend(_by_file(done.b.reading for done in self._of_lines))

    def _each(
        self, work: Callable[[ComparedPiece], tuple[R, PieceResult]], pieces: Sequence[ComparedPiece]
    ) -> Iterator[tuple[R, PieceResult]]:
        done: dict[int, list[tuple[int, int]]] = {}
        of_piece = cast("Callable[[Piece], tuple[R, PieceResult]]", work)  # engines keep the class of pieces
        for result, outcome in mapped(self._engine, of_piece, pieces, self.failed):
            for rank in outcome.ranks:
                done.setdefault(rank, []).append(outcome.steps)
            self._of_lines.append(outcome)
            yield result, outcome
        for piece in pieces:
            self._incomplete |= {rank for rank in piece.ranks if not _covered(span(piece), done.get(rank, ()))}


def _covered(steps: tuple[int, int], parts: Iterable[tuple[int, int]]) -> bool:
    """Return whether ``parts`` have all of some steps."""
    first, last = steps
    for begin, end in sorted(parts):
        if begin <= first <= end:
            first = end + 1
    return first > last


def _by_file(records: Iterable[Problems]) -> Problems:
    """Return the problems of lines once each, in the order of their files."""
    once: dict[Problem, None] = {}
    more = 0
    for problems in records:
        once.update(dict.fromkeys(problems.kept))
        more += problems.number - len(problems.kept)
    merged = Problems(number=more)
    for problem in sorted(once, key=lambda problem: str(problem.path)):
        merged.add(problem.path, problem.what, problem.line, problem.skipped)
    return merged
