"""Cells of the page, read in one go or in pieces of a run; the result is the same."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from probe.core.analysis.engines import PieceEngine, read_each
from probe.core.analysis.pieces import Cut, Piece, by_ranks, by_steps, opened
from probe.core.analysis.report.heatmaps import Found, HeatmapSums, LineSums, list_lines, list_members
from probe.core.analysis.report.layout import MOST_LINES, ReportPlan, SignalPlan
from probe.core.analysis.report.rank_table import RankOrder, RankTable, Whole
from probe.core.analysis.report.survey import Survey, SurveyPart, list_stages, merged, survey_parts
from probe.core.messages import plural
from probe.core.naming import RUN
from probe.core.storage.directories import RecordedRun, last_run
from probe.core.storage.duckdb_reader import Rows, connect
from probe.core.storage.layout import table_name
from probe.core.storage.problems import Problems

R = TypeVar("R")

MEMORY = "400MB"
"""Memory limit of DuckDB: together with the page itself less than 1 GiB."""
CUTS: tuple[Cut, ...] = ("ranks", "steps")
FileNames = tuple[tuple[str, int, bool], ...]
"""Files of a signal in a directory by steps: name, first step (-1 of a database), whether it is a database."""


class RunFiles(NamedTuple):
    """What a first reading of a run, or of a piece of it, gives."""

    parts: list[SurveyPart]
    files: dict[str, dict[int, FileNames]]
    """For each signal the files by the number of their directory."""


@dataclass(frozen=True)
class CellWork:
    """What is read of each piece of a run; it can be pickled."""

    plan: ReportPlan
    table: RankTable
    orders: tuple[RankOrder, ...]

    @property
    def stores(self) -> int:
        """Number of orders in which groups of ranks are different ones."""
        return 1 + max(order.store for order in self.orders)

    def lines(self, store: int) -> Whole:
        """Line of each rank on the first level, in the order ``store``."""
        plan, number = self.plan, len(self.table.ranks)
        if plan.fine is None:
            return np.arange(number) // plan.ranks_a_line
        order = next(order for order in self.orders if order.store == store)
        place = np.empty(len(order.lines), dtype=np.int64)
        place[order.lines] = np.arange(len(order.lines))
        return place[np.arange(number) // plan.fine.ranks_a_line] // plan.fine.lines_a_line


@dataclass
class SignalCells:
    """Cells of one signal."""

    heat: HeatmapSums
    lines: list[LineSums] = field(default_factory=list)
    """First level of the ranks, for each order that groups them differently."""
    fine: LineSums | None = None
    """Second level."""

    def query(self, rows: Rows) -> list[Found]:
        """Cells that ``rows`` have."""
        list_members(rows, self.heat.signal)
        found = [self.heat.query(rows), *(sums.query(rows, f"l{n}") for n, sums in enumerate(self.lines))]
        return [*found, self.fine.query(rows, "fine")] if self.fine else found

    def add(self, found: Sequence[Found]) -> None:
        """Merge the result of :meth:`query` on a piece."""
        for sums, own in zip([self.heat, *self.lines, *([self.fine] if self.fine else [])], found, strict=True):
            sums.add(own)


def signal_cells(work: CellWork, n: int) -> SignalCells:
    """Cells of the signal ``n``, without any yet."""
    plan, signal = work.plan, work.plan.signals[n]
    cells = SignalCells(HeatmapSums(plan, signal, len(work.table.stages)))
    if len(work.table.ranks) == 1:
        return cells
    own = range(len(signal.labels))
    for store in range(work.stores):
        number = int(work.lines(store).max(initial=0)) + 1
        cells.lines.append(LineSums(signal, signal.rank_ops, plan.rank_columns, own, number))
    if plan.fine:
        fine = plan.fine.signals[n]
        cells.fine = LineSums(signal, fine.ops, plan.fine.columns, fine.row_of, plan.fine.lines)
    return cells


class RunSource(Protocol):
    """A run that is being read."""

    @property
    def run_rows(self) -> Rows:
        """Rows that have the numbers of the run."""

    def survey(self) -> tuple[Survey, RunFiles]:
        """Read the names and steps."""

    def cells(self, work: CellWork, observe: Callable[[str], object]) -> Iterator[tuple[SignalPlan, SignalCells]]:
        """Read the cells of each signal."""

    def by_steps(self, function: Callable[[Rows, Piece | None], R]) -> Iterator[R]:
        """Apply ``function`` to ranges of steps, each with all ranks."""


class WholeRun:
    """A run that is read in one go."""

    def __init__(self, rows: Rows, table: RankTable) -> None:
        self._rows, self._table = rows, table

    @property
    def run_rows(self) -> Rows:
        """All rows."""
        return self._rows

    def by_steps(self, function: Callable[[Rows, Piece | None], R]) -> Iterator[R]:
        """Apply ``function`` to all rows."""
        yield function(self._rows, None)

    def survey(self) -> tuple[Survey, RunFiles]:
        """Read the names and steps."""
        found = surveyed(self._rows, None, self._table)
        return merged(found.parts), found

    def cells(self, work: CellWork, observe: Callable[[str], object]) -> Iterator[tuple[SignalPlan, SignalCells]]:
        """Read the cells of each signal, one after the other."""
        _list_ranks(self._rows, work)
        for n, signal in enumerate(work.plan.signals):
            observe(f"{signal.signal} ({n + 1} of {len(work.plan.signals)})")
            cells = signal_cells(work, n)
            cells.add(cells.query(self._rows))
            yield signal, cells


class RunPieces:
    """A run that is read in pieces, by an engine."""

    def __init__(
        self, run: RecordedRun, run_rows: Rows, engine: PieceEngine, table: RankTable, problems: Problems
    ) -> None:
        self._run, self.run_rows, self._engine, self._table, self._problems = run, run_rows, engine, table, problems
        self._pieces = by_ranks(run, None, least=engine.width, cuts=CUTS)

    def by_steps(self, function: Callable[[Rows, Piece | None], R]) -> Iterator[R]:
        """Apply ``function`` to ranges of steps, in their order."""
        pieces = [replace(piece, checked=True) for piece in by_steps(self._run, None, least=self._engine.width)]
        yield from read_each(self._engine, function, pieces, self._problems)

    def survey(self) -> tuple[Survey, RunFiles]:
        """Read the names and steps."""
        function = partial(surveyed, table=self._table)
        found = together(read_each(self._engine, function, self._pieces, self._problems))
        return merged(found.parts), found

    def cells(self, work: CellWork, observe: Callable[[str], object]) -> Iterator[tuple[SignalPlan, SignalCells]]:
        """Read the cells of all signals."""
        observe("reading the cells of the page")
        kept = [signal_cells(work, n) for n in range(len(work.plan.signals))]
        pieces = [replace(piece, checked=True) for piece in self._pieces]
        for found in read_each(self._engine, partial(piece_cells, work=work), pieces, self._problems):
            for n, own in found.items():
                kept[n].add(own)
        yield from zip(work.plan.signals, kept, strict=True)


@contextmanager
def opened_run(
    run: RecordedRun, table: RankTable, problems: Problems, engine: PieceEngine | None
) -> Iterator[RunSource]:
    """Open a run: in pieces if there are several processes or many ranks, else in one go."""
    if engine is None or (engine.width == 1 and len(run.ranks) <= MOST_LINES):
        with closing(connect(MEMORY)) as connection, Rows(run.directories, problems, connection) as rows:
            yield WholeRun(rows, table)
        return
    [whole] = by_ranks(run, None, most_bytes=sys.maxsize, signals=(RUN,), manifests=True)
    with opened(replace(whole, checked=True), problems) as rows:
        yield RunPieces(run, rows, engine, table, problems)


def pieces_of_report(root: Path) -> list[str]:
    """Lines about what a report of the last run in ``root`` reads; names of files are listed, none is opened.

    Raises:
        ValueError: if there is no run in ``root``.
    """
    run = last_run(root, Problems())
    pieces = by_ranks(run, None, cuts=CUTS)
    lines = [
        f"{_amount(pieces)}, for names and steps",
        f"{_amount(pieces)}, for the cells of the page",
    ]
    if len(run.ranks) > MOST_LINES:
        lines.append(f"{_amount(by_steps(run, None))}, for the comparison of replicas")
    return lines


def _amount(pieces: Sequence[Piece]) -> str:
    files = {file.path for piece in pieces for own in piece.files.values() for _, file in own}
    size = sum(piece.bytes for piece in pieces) / 1e6
    number = f"{len(pieces)} {plural(len(pieces), 'piece')}, {len(files)} {plural(len(files), 'file')}"
    return f"{number}, about {size:.1f} MB"


def surveyed(rows: Rows, _: Piece | None, table: RankTable) -> RunFiles:
    """Survey the rows of a piece, or of a whole run."""
    numbers = table.numbers(rows.directories)
    stages = {n: int(table.stages[number]) for n, number in enumerate(numbers)}
    known: dict[FileNames, FileNames] = {}
    files = {signal: _files(rows, signal, numbers, known) for signal in rows.signals}
    return RunFiles(survey_parts(rows, stages, numbers), files)


def together(found: Iterable[RunFiles]) -> RunFiles:
    """What several pieces give together."""
    whole = RunFiles([], {})
    for parts, files in found:
        whole.parts.extend(parts)
        for signal, of_signal in files.items():
            own = whole.files.setdefault(signal, {})
            for number, names in of_signal.items():
                both = dict.fromkeys((*own.get(number, ()), *names))
                own[number] = tuple(sorted(both, key=lambda name: name[1])) if number in own else names
    return whole


def piece_cells(rows: Rows, _: Piece, work: CellWork) -> dict[int, list[Found]]:
    """Cells of the signals of a piece, by the number of the signal."""
    numbers = work.table.numbers(rows.directories)
    list_stages(rows, {n: int(work.table.stages[number]) for n, number in enumerate(numbers)}, numbers)
    _list_ranks(rows, work)
    return {
        n: signal_cells(work, n).query(rows)
        for n, signal in enumerate(work.plan.signals)
        if signal.signal in rows.signals
    }


def _list_ranks(rows: Rows, work: CellWork) -> None:
    """Add the lines of each directory's rank to the table ``stages``."""
    places = [work.table.position(directory.rank) for directory in rows.directories]
    columns: Mapping[str, Sequence[int]] = {f"l{n}": work.lines(n)[places].tolist() for n in range(work.stores)}
    if work.plan.fine:
        columns = {**columns, "fine": (np.array(places) // work.plan.fine.ranks_a_line).tolist()}
    list_lines(rows, columns)


def _files(rows: Rows, signal: str, numbers: Sequence[int], known: dict[FileNames, FileNames]) -> dict[int, FileNames]:
    """Files of a signal by the number of the directory; equal ones are the same object."""
    files: dict[int, dict[str, tuple[str, int, bool]]] = {}
    for directory, file in rows.files[signal]:
        name = rows.original(file).name
        table = table_name(name)
        files.setdefault(numbers[directory], {})[name] = (name, table.first if table else -1, table is None)
    found = {number: tuple(own.values()) for number, own in files.items()}
    return {number: known.setdefault(names, names) for number, names in found.items()}
