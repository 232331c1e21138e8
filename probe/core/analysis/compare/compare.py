"""Comparison of two runs: the verdict and the numbers behind it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeVar, cast

from probe.core.analysis.compare.census import Census, Wanted, count
from probe.core.analysis.compare.compared_piece import ComparedPiece, PieceResult, Side, divided, found, span
from probe.core.analysis.compare.differences import RELATIVE, DifferenceTables, coarsest, measure
from probe.core.analysis.compare.first_difference import DifferingRow, first_rows, request
from probe.core.analysis.compare.jumps import LEAST, Jump, first_of
from probe.core.analysis.compare.name_map import nearest
from probe.core.analysis.compare.pairing import OnlyIn, Options, Sides, only_ranks, pair_ranks, wanted
from probe.core.analysis.engines import PieceEngine, mapped
from probe.core.analysis.engines.workers import LocalEngine
from probe.core.analysis.pieces import Piece
from probe.core.storage.location import Place
from probe.core.storage.problems import Problem, Problems

MOST_POINTS = 1000
"""Most steps for which growth is listed; more are merged into ranges of steps, with the largest in each."""
MOST_NAMES = 400
"""Most names of a signal for which growth is listed."""
LEAST_EACH = 4
"""Pieces for each that is worked on at a time, if there are as many ranks: the last ones end at about the same time."""
MOST_LISTED = 100
"""Most names in one run alone that are listed."""


class Growth(NamedTuple):
    """Largest relative difference of a signal over steps."""

    signal: str
    steps: list[int]
    """Steps of A; the first of each range."""
    differences: list[float]
    """Largest of each step; infinite where just one run has NaN or Inf."""


class Layers(NamedTuple):
    """Largest relative difference of each name over steps."""

    signal: str
    names: list[str]
    """Names in the order of A's first rows."""
    steps: list[int]
    """First step of each range of steps."""
    differences: list[list[float | None]]
    """Differences by name, then range; None where there is nothing to compare."""


class Comparison(NamedTuple):
    """Result of comparing two runs."""

    a: str
    b: str
    """Directory of the second run; ``a`` is that of the first."""
    tolerance: float
    """Relative tolerance."""
    dtype: str
    """Coarsest dtype that either run computes in, which sets the tolerance; empty if the caller set it."""
    rows: int
    """Number of pairs of rows compared."""
    beyond: int
    """Number of pairs that differ by more than the tolerance."""
    first: list[DifferingRow]
    """First of these pairs, in causal order."""
    before: float
    """Largest relative difference in the steps before the first that is beyond the tolerance; 0 if there is none."""
    steps: tuple[int, int]
    """First and last step compared."""
    ranks: list[tuple[int, int]]
    signals: dict[str, str]
    """Signals of A, with B's name of each."""
    renamed: int
    """Number of names that are different in B."""
    by_framework: int
    """Number of those that differ by framework."""
    common: bool
    """True if data of one run alone are no difference."""
    only_rows: tuple[int, int]
    """Numbers of rows in A alone and in B alone, at steps that both have."""
    only_names: OnlyIn
    only_steps: OnlyIn
    only_ranks: OnlyIn
    only_signals: OnlyIn
    counts: list[tuple[str, int, int, float]]
    """Signal, pairs of rows, pairs beyond the tolerance, and the largest relative difference."""
    growth: list[Growth]
    layers: list[Layers]
    largest: float
    """Largest relative difference of all rows; 0 if all numbers are equal to the digits that were written."""
    paced: bool
    """True if a run chose the steps that it recorded by their cost, so that those of one run alone are left out."""
    jumps: list[Jump]
    """First modules whose outputs differ by much more than what goes into them, in causal order."""
    precision: list[str]
    """Signals of which most names have other dtypes in B: these are not compared."""
    problems: list[str]
    """Messages about data that could not be read."""
    skipped: bool
    """True if data were left out because of these."""

    @property
    def one_sided(self) -> bool:
        """True if one run has data that the other has not."""
        only = (*self.only_names, *self.only_steps, *self.only_ranks, *self.only_signals)
        return any(only) or any(self.only_rows)

    @property
    def agrees(self) -> bool:
        """True if all rows are within the tolerance, and no module parts the runs."""
        whole = self.rows > 0 and (self.common or not self.one_sided)
        return whole and not self.beyond and not self.jumps

    @property
    def same(self) -> bool:
        """True if all numbers are equal to the digits that were written."""
        return self.agrees and not self.largest


def compare(
    a: Place,
    b: Place,
    options: Options = Options(),  # noqa: B008 - it is frozen
    most: int = 20,
    engine: PieceEngine | None = None,
    directories: tuple[str, str] = ("", ""),
) -> Comparison:
    """Compare the runs that began last in two directories.

    Memory does not grow with the number of ranks or steps: they are compared in pieces, and results lie in tables of
    DuckDB, which may spill to disk. Results depend neither on the number of pieces nor on their order.

    Args:
        most: greatest number of differing rows in the result.
        engine: does the work; None for this process.
        directories: names of directories of the two runs that are compared instead; empty for those that began last.

    Raises:
        ValueError: if a run cannot be read, if they have nothing in common, or if the options name data that they lack.
        ImportError: if DuckDB is missing.
    """
    side_a, side_b = found("a", a, directories[0]), found("b", b, directories[1])
    ranks = pair_ranks(side_a, side_b, options)
    engine_used = engine or LocalEngine(1)
    passes = ComparisonPasses(engine_used, divided(side_a, side_b, ranks, options.step_offset, _least(engine_used)))
    census = passes.count(wanted(options))
    _check_readable(census, passes, side_a, side_b)
    sides = Sides(side_a, side_b, options, census)
    dtype = coarsest(sides.dtypes())
    relative = RELATIVE[dtype] if options.relative is None else options.relative
    with DifferenceTables(sides.pairing(relative, dtype, LEAST[dtype])) as tables:
        passes.measure(tables, census)
        first, executed = passes.first_rows(tables, most, ranks[0][0])
        compared = _compared(sides, tables, first, executed)._replace(
            dtype="" if options.relative is not None else dtype,
            ranks=[pair for pair in ranks if pair[0] not in passes.incomplete()],
        )
        duplicated = [
            f"{signal}: rows come twice in a step: the later of each is taken" for signal in tables.duplicated
        ]
    passes.add_problems(side_a, side_b)
    read = [passes.failed, side_a.problems, side_b.problems]
    lines = [line for problems in read for line in problems.lines()]
    return compared._replace(problems=lines + duplicated, skipped=any(problems.skipped for problems in read))


def planned(a: Place, b: Place, options: Options = Options()) -> list[ComparedPiece]:  # noqa: B008 - it is frozen
    """Return the pieces in which two runs are compared in this process; none of their files is opened.

    Raises:
        ValueError: if a run cannot be found, or they have no rank in common.
    """
    side_a, side_b = found("a", a), found("b", b)
    return divided(side_a, side_b, pair_ranks(side_a, side_b, options), options.step_offset)


def _least(engine: PieceEngine) -> int:
    return 1 if engine.width == 1 else LEAST_EACH * engine.width


def _check_readable(census: Census, passes: ComparisonPasses, a: Side, b: Side) -> None:
    for side in (a, b):
        if not census.signals(side.letter):
            passes.add_problems(a, b)
            problems = [*passes.failed.lines(), *side.problems.lines()]
            raise ValueError("\n".join([f"{side.root}: expected files of the monitor; none can be read", *problems]))


def _compared(
    sides: Sides, tables: DifferenceTables, first: list[DifferingRow], executed: Mapping[str, Mapping[str, int]]
) -> Comparison:
    rows, beyond, only_a, only_b = _totals(tables)
    return Comparison(
        a=str(sides.a.root),
        b=str(sides.b.root),
        tolerance=tables.relative,
        dtype="",
        rows=rows,
        beyond=beyond,
        first=first,
        before=_before(tables, first),
        steps=(sides.steps[0], sides.steps[-1]),
        ranks=[],
        signals=sides.signals,
        renamed=len(sides.names.renamed),
        by_framework=sides.names.frameworks,
        common=sides.options.common,
        only_rows=(only_a, only_b),
        only_names=_only_names(tables, rows),
        only_steps=sides.only_steps,
        only_ranks=only_ranks(sides.a, sides.b, sides.options),
        only_signals=sides.only_signals,
        counts=_counts(tables),
        growth=[_growth(tables, signal) for signal in sides.signals],
        layers=[_layers(tables, signal, executed.get(signal, {})) for signal in sides.signals],
        largest=_largest(tables),
        paced=sides.a.paced or sides.b.paced,
        jumps=first_of(tables.jumps),
        precision=sides.other_precision(),
        problems=[],
        skipped=False,
    )


def _totals(tables: DifferenceTables) -> tuple[int, int, int, int]:
    query = "SELECT sum(rows), sum(beyond), sum(only_a), sum(only_b) FROM by_step"
    rows, beyond, only_a, only_b = (int(number or 0) for number in tables.connection.execute(query).fetchall()[0])
    return rows, beyond, only_a, only_b


def _largest(tables: DifferenceTables) -> float:
    records = tables.connection.execute("SELECT coalesce(max(excess), 0) FROM by_step").fetchall()
    return float(records[0][0]) * tables.relative


def _before(tables: DifferenceTables, first: list[DifferingRow]) -> float:
    if not first:
        return 0.0
    query = "SELECT coalesce(max(excess), 0) FROM by_step WHERE step < ?"
    return float(tables.connection.execute(query, [first[0].step]).fetchall()[0][0]) * tables.relative


def _counts(tables: DifferenceTables) -> list[tuple[str, int, int, float]]:
    query = "SELECT signal, sum(rows), sum(beyond), coalesce(max(excess), 0) FROM by_step GROUP BY signal"
    by_signal = {row[0]: row for row in tables.connection.execute(query).fetchall()}
    return [
        (signal, int(by_signal[signal][1]), int(by_signal[signal][2]), by_signal[signal][3] * tables.relative)
        for signal in tables.pairing.signals
        if signal in by_signal
    ]


def _only_names(tables: DifferenceTables, rows: int) -> OnlyIn:
    """Names with their signals; if the runs share no name at all, with the nearest name of the other run."""
    lists = []
    for column in ("only_a", "only_b"):
        query = (
            f"SELECT signal, name, sum({column}) FROM by_name GROUP BY ALL "  # noqa: S608 - our own words
            f"HAVING sum({column}) > 0 ORDER BY signal, name LIMIT {MOST_LISTED}"
        )
        lists.append(tables.connection.execute(query).fetchall())
    others = [[] if rows else [name for _, name, _ in listed] for listed in lists[::-1]]
    return OnlyIn(
        *(
            [f"{signal} {name} ({n} row{'s' * (n > 1)}){nearest(name, names)}" for signal, name, n in listed]
            for listed, names in zip(lists, others, strict=True)
        )
    )


def _growth(tables: DifferenceTables, signal: str) -> Growth:
    query = (
        "WITH span AS (SELECT min(step) AS first, (max(step) - min(step)) // ? + 1 AS width FROM steps) "
        "SELECT min(step), max(excess) FROM by_step, span WHERE signal = ? AND excess IS NOT NULL "
        "GROUP BY (step - first) // width ORDER BY 1"
    )
    records = tables.connection.execute(query, [MOST_POINTS, signal]).fetchall()
    return Growth(signal, [row[0] for row in records], [row[1] * tables.relative for row in records])


def _layers(tables: DifferenceTables, signal: str, places: Mapping[str, int]) -> Layers:
    """Differences of the names that differ most, by their ``places`` in the order of execution."""
    selected = (
        "SELECT name FROM by_name WHERE signal = $signal GROUP BY name HAVING max(excess) IS NOT NULL "  # noqa: S608
        f"ORDER BY max(excess) DESC, name LIMIT {MOST_NAMES}"
    )
    query = (
        "SELECT name, bin, max(excess) FROM by_name "  # noqa: S608 - our own words
        f"WHERE signal = $signal AND name IN ({selected}) GROUP BY name, bin"
    )
    records = tables.connection.execute(query, {"signal": signal}).fetchall()
    cells = {(name, bin_): None if excess is None else excess * tables.relative for name, bin_, excess in records}
    names = sorted({name for name, _ in cells}, key=lambda name: (places.get(name, math.inf), name))
    bins = sorted({bin_ for _, bin_ in cells})
    differences = [[cells.get((name, bin_)) for bin_ in bins] for name in names]
    return Layers(signal, names, [tables.bins.first + bin_ * tables.bins.width for bin_ in bins], differences)


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
