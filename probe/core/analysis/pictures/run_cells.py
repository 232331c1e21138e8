"""Cells of the page, read in one go or in pieces of a run; the result is the same."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np

from probe.core.analysis.engines import PieceEngine, read_each
from probe.core.analysis.performance.time_use import OTHER
from probe.core.analysis.pictures.cells import KINDS, Array, CellArrays, Places, Whole, cell_query, fetched
from probe.core.analysis.pictures.layout import FEW_RANKS, Columns, ReportPlan, SignalPlan
from probe.core.analysis.pictures.rank_table import RankTable
from probe.core.analysis.pictures.survey import Survey, SurveyPart, list_stages, merged, survey_parts
from probe.core.analysis.pieces import Cut, Piece, by_ranks, by_steps, opened
from probe.core.naming import RUN
from probe.core.storage.directories import RecordedRun, last_run
from probe.core.storage.duckdb_reader import Rows, connect, fill
from probe.core.storage.layout import NAME, PP_STAGE, STAGE, table_name
from probe.core.storage.location import Place
from probe.core.storage.problems import Problems
from probe.core.storage.sql import quoted

R = TypeVar("R")

MEMORY = "400MB"
"""Memory limit of DuckDB: together with the page itself less than 1 GiB."""
CUTS: tuple[Cut, ...] = ("ranks", "steps")
FileNames = tuple[tuple[str, int, bool], ...]
"""Files of a signal in a directory by steps: name, first step (-1 of a database), whether it is a database."""
Found = Mapping[str, Array]
"""Result of a query: ``line`` and ``start`` of each cell that has a row, and its arrays, named by op and kind."""
OF_RANK = ("minimum", "maximum", "nan")
"""Arrays of the cells of single ranks."""


class RunFiles(NamedTuple):
    """Result of the first reading of a run, or of a piece of it."""

    parts: list[SurveyPart]
    files: dict[str, dict[int, FileNames]]
    """For each signal the files by the number of their directory."""


@dataclass(frozen=True)
class CellWork:
    """Parts of each piece of a run to read; it can be pickled."""

    plan: ReportPlan
    table: RankTable

    def places(self, stages: Sequence[int]) -> Whole:
        """For each line its place among those with a rank of ``stages``, -1 for the others."""
        assert self.plan.ranks is not None
        lines = np.unique(self.table.ranks_of(stages) // self.plan.ranks.ranks_a_line)
        places = np.full(self.plan.ranks.lines, -1, dtype=np.int64)
        places[lines] = np.arange(len(lines))
        return places


@dataclass
class SignalCells:
    """Cells of one signal."""

    heat: RowCells
    ranks: RankCells | None = None
    """Cells of the ranks; None if there is one."""

    def query(self, rows: Rows) -> list[Found]:
        """Cells that ``rows`` have."""
        list_members(rows, self.heat.signal)
        return [self.heat.query(rows), *([self.ranks.query(rows)] if self.ranks else [])]

    def add(self, found: Sequence[Found]) -> None:
        """Merge the result of :meth:`query` on a piece."""
        self.heat.add(found[0])
        if self.ranks:
            self.ranks.add(found[1])


def signal_cells(work: CellWork, n: int) -> SignalCells:
    """Cells of the signal ``n``, without any yet."""
    plan, signal = work.plan, work.plan.signals[n]
    heat = RowCells(plan, signal, len(work.table.stages))
    if plan.ranks is None:
        return SignalCells(heat)
    own = plan.ranks.signals[n]
    sets = list(dict.fromkeys(own.stages))
    places = np.stack([work.places(stages) for stages in sets])
    set_of = np.array([sets.index(stages) for stages in own.stages])
    return SignalCells(heat, RankCells(signal, own.ops, plan.ranks.columns, own.row_of, places, set_of))


class RunSource:
    """A run that is read in one go.

    Args:
        run_rows: rows that have the numbers of the run, and its collectives.
    """

    def __init__(self, run_rows: Rows, table: RankTable) -> None:
        self.run_rows, self._table = run_rows, table

    def read(self, function: Callable[[Rows, Piece | None], R]) -> Iterator[R]:
        """Apply ``function`` to all rows, in as many parts as there are."""
        yield function(self.run_rows, None)

    def by_steps(self, function: Callable[[Rows, Piece | None], R]) -> Iterator[R]:
        """Apply ``function`` to ranges of steps, in their order, each with all ranks."""
        yield function(self.run_rows, None)

    def survey(self) -> tuple[Survey, RunFiles]:
        """Read the names and steps."""
        found = together(self.read(partial(surveyed, table=self._table)))
        return merged(found.parts), found

    def cells(self, work: CellWork) -> Iterator[tuple[SignalPlan, SignalCells]]:
        """Read the cells of all signals."""
        cells = [signal_cells(work, n) for n in range(len(work.plan.signals))]
        for part in self.read(partial(piece_cells, work=work)):
            for n, found in part.items():
                cells[n].add(found)
        yield from zip(work.plan.signals, cells, strict=True)


class RunPieces(RunSource):
    """A run that is read in pieces, by an engine.

    Args:
        rows: the opened files of the run; None if only the workers open them.
    """

    def __init__(
        self,
        run: RecordedRun,
        rows: Rows | None,
        run_rows: Rows,
        engine: PieceEngine,
        table: RankTable,
        problems: Problems,
    ) -> None:
        super().__init__(run_rows, table)
        self._run, self._rows, self._engine, self._problems = run, rows, engine, problems
        self._pieces = by_ranks(run, rows, least=engine.width, cuts=CUTS)

    def read(self, function: Callable[[Rows, Piece | None], R]) -> Iterator[R]:
        """Apply ``function`` to pieces of ranks; problems of the files are found the first time."""
        yield from read_each(self._engine, function, self._pieces, self._problems)
        self._pieces = [replace(piece, checked=True) for piece in self._pieces]

    def by_steps(self, function: Callable[[Rows, Piece | None], R]) -> Iterator[R]:
        """Apply ``function`` to ranges of steps, in their order."""
        pieces = [replace(piece, checked=True) for piece in by_steps(self._run, self._rows, least=self._engine.width)]
        yield from read_each(self._engine, function, pieces, self._problems)


@contextmanager
def opened_run(
    run: RecordedRun, table: RankTable, problems: Problems, engine: PieceEngine | None
) -> Iterator[RunSource]:
    """Open a run: in pieces if there are several processes or many ranks, else in one go."""
    if engine is None or (engine.width == 1 and len(run.ranks) <= FEW_RANKS):
        with closing(connect(MEMORY)) as connection, Rows(run.directories, problems, connection) as rows:
            yield RunSource(rows, table)
        return
    if any(directory.packed is not None for directory in run.directories):  # to open it costs one file
        with closing(connect(MEMORY)) as connection, Rows(run.directories, problems, connection) as rows:
            yield RunPieces(run, rows, rows, engine, table, problems)
        return
    [whole] = by_ranks(run, None, most_bytes=sys.maxsize, signals=(RUN, OTHER), manifests=True)
    with opened(replace(whole, checked=True), problems) as rows:
        yield RunPieces(run, None, rows, engine, table, problems)


def pieces_of_report(root: Place) -> list[tuple[str, list[Piece]]]:
    """Pieces of the last run in ``root`` that a report reads, by what they are read for.

    Raises:
        ValueError: if there is no run in ``root``.
    """
    run = last_run(root, Problems())
    pieces = by_ranks(run, None, cuts=CUTS)
    found = [("names and steps", pieces), ("cells of the page", pieces)]
    return found + [("comparison of replicas", by_steps(run, None))] * (len(run.ranks) > FEW_RANKS)


def surveyed(rows: Rows, _: Piece | None, table: RankTable) -> RunFiles:
    """Survey the rows of a piece, or of a whole run."""
    numbers = table.numbers(rows.directories)
    stages = {n: int(table.stages[number]) for n, number in enumerate(numbers)}
    known: dict[FileNames, FileNames] = {}
    files = {signal: _files(rows, signal, numbers, known) for signal in rows.signals}
    return RunFiles(survey_parts(rows, stages, numbers), files)


def together(found: Iterable[RunFiles]) -> RunFiles:
    """Merge the results of several pieces."""
    whole = RunFiles([], {})
    for parts, files in found:
        whole.parts.extend(parts)
        for signal, of_signal in files.items():
            own = whole.files.setdefault(signal, {})
            for number, names in of_signal.items():
                both = dict.fromkeys((*own.get(number, ()), *names))
                own[number] = tuple(sorted(both, key=lambda name: name[1])) if number in own else names
    return whole


def piece_cells(rows: Rows, _: Piece | None, work: CellWork) -> dict[int, list[Found]]:
    """Cells of the signals of a piece, or of a whole run, by the number of the signal."""
    _list_directories(rows, work)
    return {
        n: signal_cells(work, n).query(rows)
        for n, signal in enumerate(work.plan.signals)
        if signal.signal in rows.signals
    }


def _list_directories(rows: Rows, work: CellWork) -> None:
    """Make the table ``stages`` with the line of each directory's rank."""
    numbers, lines = work.table.numbers(rows.directories), None
    if work.plan.ranks:
        width = work.plan.ranks.ranks_a_line
        lines = [work.table.position(directory.rank) // width for directory in rows.directories]
    list_stages(rows, {n: int(work.table.stages[number]) for n, number in enumerate(numbers)}, numbers, lines)


def _files(rows: Rows, signal: str, numbers: Sequence[int], known: dict[FileNames, FileNames]) -> dict[int, FileNames]:
    """Files of a signal by the number of the directory; equal ones are the same object."""
    files: dict[int, dict[str, tuple[str, int, bool]]] = {}
    for directory, file in rows.files[signal]:
        name = rows.original(file).name
        table = table_name(name)
        files.setdefault(numbers[directory], {})[name] = (name, table.first if table else -1, table is None)
    found = {number: tuple(own.values()) for number, own in files.items()}
    return {number: known.setdefault(names, names) for number, names in found.items()}


class OpCells:
    """Cells of some ops of a signal, lines by columns; parts are added in any order.

    Args:
        lines: number of lines.
        kinds: arrays of the cells.
    """

    def __init__(
        self, signal: SignalPlan, ops: Sequence[str], columns: Columns, lines: int, kinds: Sequence[str]
    ) -> None:
        self.signal, self.ops, self.columns = signal, tuple(ops), columns
        self._lines, self._kinds = lines, tuple(kinds)
        self._cells: dict[str, CellArrays] = {}

    @property
    def cells(self) -> dict[str, CellArrays]:
        """Cells of each op; they are made when they are first needed, which a process that only queries does not."""
        if not self._cells:
            shape = self._lines, len(self.columns.starts)
            self._cells = {op: CellArrays.of(*shape, self._kinds) for op in self.ops}
        return self._cells

    def found(self, rows: Rows, line: str, place: str = "", join: str = "") -> Found:
        """Cells that ``rows`` have; a survey has made the table ``stages``, and :func:`list_members` ``members``."""
        names = rows.numbers(self.signal.signal)
        source = (
            f"{rows.view(self.signal.signal)} AS v JOIN stages AS s ON s.directory = v.directory "
            "JOIN members AS w ON w.pp_stage = s.pp_stage AND w.vpp_stage = coalesce(v.vpp_stage, 0) "
            f"AND w.name = coalesce(v.name, '') {join}"
        )
        numbers = {f"op{n}_": f"v.{quoted(op)}" for n, op in enumerate(self.ops) if op in names}
        keys = {"line": line, "start": self.columns.sql()}
        return fetched(rows.connection, cell_query(keys, numbers, source, place=place, kinds=self._kinds))

    def merge(self, found: Found, lines: Whole) -> None:
        """Merge the cells of a part of the run, each with its line."""
        columns = self.columns.of(found["start"])
        for n, op in enumerate(self.ops):
            if f"op{n}_minimum" in found:
                own = {kind: found[f"op{n}_{kind}"] for kind in self._kinds}
                self.cells[op].merge(lines, columns, own)


class RowCells(OpCells):
    """Cells of all ranks together, a line a row of the page.

    Args:
        directories: number of directories of the whole run.
    """

    def __init__(self, plan: ReportPlan, signal: SignalPlan, directories: int) -> None:
        super().__init__(signal, signal.ops, plan.columns, len(signal.labels), tuple(KINDS))
        self.places = Places(max(directories, 1), plan.micro_steps, signal.most_members)

    def query(self, rows: Rows) -> Found:
        """Cells that ``rows`` have."""
        return self.found(rows, "w.row", self.places.sql("s.number"))

    def add(self, found: Found) -> None:
        """Merge the result of :meth:`query` on a part of the run."""
        self.merge(found, found["line"])


class RankCells(OpCells):
    """Cells of lines, which are ranks or groups of them: those of a row one after the other.

    Args:
        ops: ops of the signal that are wanted.
        row_of: for each row of the page the row here.
        places: for some sets of lines the place of each line in the set, -1 for the others.
        set_of: for each row here the set of the lines that may have it.
    """

    def __init__(
        self,
        signal: SignalPlan,
        ops: Sequence[str],
        columns: Columns,
        row_of: Sequence[int],
        places: Whole,
        set_of: Whole,
    ) -> None:
        self.rows, self._row_of, self._places, self._set_of = len(set_of), row_of, places, set_of
        self._first = np.concatenate([[0], np.cumsum(1 + places.max(axis=1)[set_of])])
        super().__init__(signal, ops, columns, int(self._first[-1]), OF_RANK)

    def query(self, rows: Rows) -> Found:
        """Cells that ``rows`` have."""
        fill(rows.connection, "coarse", {"row": "INTEGER", "own": "INTEGER"}, enumerate(self._row_of))
        return self.found(
            rows, f"r.own * {self._places.shape[1]} + s.rank_line", join="JOIN coarse AS r ON r.row = w.row"
        )

    def add(self, found: Found) -> None:
        """Merge the result of :meth:`query` on a part of the run."""
        row, line = np.divmod(found["line"], self._places.shape[1])
        place = self._places[self._set_of[row], line]
        assert (place >= 0).all(), "a line has a row that its stage has not"
        self.merge(found, self._first[row] + place)

    def row_cells(self, row: int) -> dict[str, CellArrays]:
        """For each op the cells of a row: a line for each of those that may have it."""
        own = slice(int(self._first[row]), int(self._first[row + 1]))
        return {op: CellArrays({kind: array[own] for kind, array in of.items()}) for op, of in self.cells.items()}


def list_members(rows: Rows, signal: SignalPlan) -> None:
    """Make the table ``members``: the row and the place in it of each name of a signal."""
    listed = [
        (member.pp_stage, member.vpp_stage, member.name, row, n)
        for row, members in enumerate(signal.members)
        for n, member in enumerate(members)
    ]
    columns = dict.fromkeys((PP_STAGE, STAGE, NAME, "row", "member"), "INTEGER") | {NAME: "VARCHAR"}
    fill(rows.connection, "members", columns, listed)
