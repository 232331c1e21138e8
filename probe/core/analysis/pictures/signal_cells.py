"""Cells of all ops of a signal, as many as a page has room for, from any number of parts of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from probe.core.analysis.pictures.cells import KINDS, Array, CellArrays, Places, Whole, aggregates, fetched
from probe.core.analysis.pictures.layout import Columns, ReportPlan, SignalPlan
from probe.core.storage.duckdb_reader import Rows, fill
from probe.core.storage.layout import NAME, PP_STAGE, STAGE
from probe.core.storage.sql import quoted

Found = Mapping[str, Array]
"""Result of a query: ``line`` and ``start`` of each cell that has a row, and its arrays, named by op and kind."""
OF_RANK = ("minimum", "maximum", "nan")
"""Arrays of the cells of single ranks."""


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
        ops = [
            aggregates(f"v.{quoted(op)}", place, self._kinds, f"op{n}_") for n, op in enumerate(self.ops) if op in names
        ]
        query = (
            f"SELECT {', '.join([f'{line} AS line', f'{self.columns.sql()} AS start', *ops])} "  # noqa: S608 - our own words
            f"FROM {rows.view(self.signal.signal)} AS v JOIN stages AS s ON s.directory = v.directory "
            "JOIN members AS w ON w.pp_stage = s.pp_stage AND w.vpp_stage = coalesce(v.vpp_stage, 0) "
            f"AND w.name = coalesce(v.name, '') {join} GROUP BY 1, 2"
        )
        return fetched(rows.connection, query)

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
        places: for each row here the place of each line among those that may have it, -1 for the others.
    """

    def __init__(
        self, signal: SignalPlan, ops: Sequence[str], columns: Columns, row_of: Sequence[int], places: Sequence[Whole]
    ) -> None:
        self.rows, self._row_of, self._places = len(places), row_of, places
        lines = [int(place.max(initial=-1)) + 1 for place in places]
        self._first = np.concatenate([[0], np.cumsum(lines, dtype=np.int64)])
        super().__init__(signal, ops, columns, int(self._first[-1]), OF_RANK)

    def query(self, rows: Rows) -> Found:
        """Cells that ``rows`` have."""
        fill(rows.connection, "coarse", {"row": "INTEGER", "own": "INTEGER"}, enumerate(self._row_of))
        return self.found(
            rows, f"r.own * {len(self._places[0])} + s.rank_line", join="JOIN coarse AS r ON r.row = w.row"
        )

    def add(self, found: Found) -> None:
        """Merge the result of :meth:`query` on a part of the run."""
        row, line = np.divmod(found["line"], len(self._places[0]))
        lines = np.empty(len(row), dtype=np.int64)
        for one in np.unique(row).tolist():
            own = row == one
            place = self._places[one][line[own]]
            assert (place >= 0).all(), "a line has a row that its stage has not"
            lines[own] = self._first[one] + place
        self.merge(found, lines)

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
