"""Heatmaps of a run, with as many cells as the page has room for; DuckDB reads the files.

A cell is about one row of the page and one column, over all ranks and micro steps. It keeps the number of largest
magnitude as it was written, and its place; NaN and Inf take precedence over every number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from probe.core.analysis.pictures.layout import Columns, ReportPlan, SignalPlan
from probe.core.storage.duckdb_reader import Rows, fill
from probe.core.storage.layout import NAME, PP_STAGE, STAGE
from probe.core.storage.sql import quoted

Array = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

Found = Mapping[str, Any]
"""Result of a query: columns, masked where a cell has no such number."""

LAST = (1 << 63) - 1
"""Place beyond all others."""
LAST_PLACE = (1 << 60) - 1
"""Beyond twice any place in a cell."""
KIND = 1 << 61
"""Number that is added to twice a place if there is Inf, and one more for -Inf, so that the lowest is the first NaN,
else the first Inf of either sign."""


class CellPlaces(NamedTuple):
    """Places of numbers; each array has rows x columns."""

    step: Whole
    directory: Whole
    micro_step: Whole
    member: Whole
    """Index among the names that the row stands for."""


class Cells(NamedTuple):
    """Cells of one op of one signal: arrays of rows x columns."""

    value: Array
    """First NaN, else the first Inf, else the number of largest magnitude."""
    missing: Mask
    """Cells without a written number."""
    least: Array
    """Smallest magnitude among finite numbers; NaN if there is none."""
    nan: Whole
    """Count of NaN."""
    inf: Whole
    """Count of Inf of either sign."""
    places: CellPlaces
    """Places of ``value``."""


class _Packing(NamedTuple):
    """Packing of a place into one number: the step counts most, then directory, micro step and member."""

    directories: int
    micro_steps: int
    members: int

    def sql(self) -> str:
        return (
            f"((v.step * {self.directories} + s.number) * {self.micro_steps} + coalesce(v.micro_step, 0)) "
            f"* {self.members} + w.member"
        )

    def places(self, packed: Whole) -> CellPlaces:
        rest, member = np.divmod(packed, self.members)
        rest, micro_step = np.divmod(rest, self.micro_steps)
        step, directory = np.divmod(rest, self.directories)
        return CellPlaces(step, directory, micro_step, member)


class HeatmapSums:
    """Cells of every op of a signal, from any number of parts of a run, added in any order.

    Args:
        directories: number of directories of the whole run.
    """

    def __init__(self, plan: ReportPlan, signal: SignalPlan, directories: int) -> None:
        self.plan, self.signal = plan, signal
        self._packing = _Packing(max(directories, 1), plan.micro_steps, signal.most_members)
        self._begun = False

    def _begin(self) -> None:
        """Make the arrays, which a process that only queries does not need."""
        self._begun = True
        shape = (len(self.signal.ops), len(self.signal.labels), len(self.plan.columns.starts))
        self._size = np.full(shape, -1.0)
        self._where = np.full(shape, LAST, dtype=np.int64)
        self._least = np.full(shape, np.inf)
        self._worst = np.full(shape, LAST, dtype=np.int64)
        self._nan, self._inf = (np.zeros(shape, dtype=np.int32) for _ in range(2))

    def query(self, rows: Rows) -> Found:
        """Cells that ``rows`` have; a survey has made the table ``stages``, and :func:`list_members` ``members``."""
        place, there = self._packing.sql(), rows.numbers(self.signal.signal)
        aggregates = {n: _aggregates(op, place) for n, op in enumerate(self.signal.ops) if op in there}
        return grouped(rows, self.signal, self.plan.columns, aggregates, group="w.row", extra="")

    def add(self, found: Found) -> None:
        """Merge the result of :meth:`query` on a part of the run."""
        if not self._begun:
            self._begin()
        at = found["line"], self.plan.columns.of(found["start"])
        for n in _ops_in(found, len(self.signal.ops)):
            size, where, least, worst, nan, inf = (found[f"a{n}_{m}"] for m in range(6))
            size = np.ma.filled(size, -1.0)  # type: ignore[no-untyped-call]
            where = np.ma.filled(where, LAST)  # type: ignore[no-untyped-call]
            before = self._size[n][at]
            first = np.minimum(where, self._where[n][at])
            self._where[n][at] = np.where(size == before, first, np.where(size > before, where, self._where[n][at]))
            self._size[n][at] = np.maximum(size, before)
            least = np.ma.filled(least, np.inf)  # type: ignore[no-untyped-call]
            self._least[n][at] = np.minimum(least, self._least[n][at])
            worst = np.ma.filled(worst, LAST)  # type: ignore[no-untyped-call]
            self._worst[n][at] = np.minimum(worst, self._worst[n][at])
            self._nan[n][at] += np.ma.filled(nan, 0)  # type: ignore[no-untyped-call]
            self._inf[n][at] += np.ma.filled(inf, 0)  # type: ignore[no-untyped-call]

    def cells(self) -> dict[str, Cells]:
        """Cells of each op, of all parts together."""
        if not self._begun:
            self._begin()
        return {op: self._cells(n) for n, op in enumerate(self.signal.ops)}

    def _cells(self, n: int) -> Cells:
        bad, there = self._worst[n] < LAST, self._size[n] >= 0
        place, negative = np.divmod(np.where(there, self._where[n], 0), 2)
        value = np.where(there, np.where(negative, -self._size[n], self._size[n]), np.nan)
        kind, first = np.divmod(np.where(bad, self._worst[n], 0), KIND)
        first, below = np.divmod(first, 2)
        value[bad] = np.where(kind == 1, np.where(below, -np.inf, np.inf), np.nan)[bad]
        least = np.where(np.isinf(self._least[n]), np.nan, self._least[n])
        places = self._packing.places(np.where(bad, first, place))
        nan, inf = self._nan[n].astype(np.int64), self._inf[n].astype(np.int64)
        return Cells(value, ~there & ~bad, least, nan, inf, places)


class LineSums:
    """Numbers of lines (ranks, or groups of them), from any number of parts of a run, added in any order.

    Args:
        ops: ops of the signal that are wanted.
        row_of: for each row of the page the row here.
        lines: number of lines.
        places: for each row here the place of each line among those that may have it, -1 for the others; None if every
            line may have every row.
    """

    def __init__(
        self,
        signal: SignalPlan,
        ops: Sequence[str],
        columns: Columns,
        row_of: Sequence[int],
        lines: int,
        places: Sequence[Whole] | None = None,
    ) -> None:
        self.signal, self.ops, self.columns, self.lines = signal, tuple(ops), columns, lines
        self.row_of = np.asarray(row_of, dtype=np.int64)
        self.rows = int(self.row_of.max(initial=-1)) + 1
        self._places = [np.arange(lines)] * self.rows if places is None else places
        held = [int(place.max(initial=-1)) + 1 for place in self._places]
        self._first = np.concatenate([[0], np.cumsum(held, dtype=np.int64)])
        self._begun = False

    def _begin(self) -> None:
        self._begun = True
        shape = (len(self.ops), int(self._first[-1]), len(self.columns.starts))
        self._high = np.full(shape, -np.inf, dtype=np.float64)
        self._low = np.full(shape, np.inf, dtype=np.float64)

    def query(self, rows: Rows, line: str) -> Found:
        """Cells that ``rows`` have.

        Args:
            line: column of the table ``stages`` with the line of each directory.
        """
        there = rows.numbers(self.signal.signal)
        chosen = {n: f"v.{quoted(op)}" for n, op in enumerate(self.ops) if op in there}
        aggregates = {n: [f"max({x})", f"min({x})"] for n, x in chosen.items()}
        fill(rows.connection, "coarse", {"row": "INTEGER", "own": "INTEGER"}, enumerate(self.row_of.tolist()))
        group, extra = f"r.own * {self.lines} + s.{line}", "JOIN coarse AS r ON r.row = w.row"
        return grouped(rows, self.signal, self.columns, aggregates, group, extra)

    def add(self, found: Found) -> None:
        """Merge the result of :meth:`query` on a part of the run."""
        if not self._begun:
            self._begin()
        row, line = np.divmod(found["line"], self.lines)
        at = self._first[row] + self._placed(row, line), self.columns.of(found["start"])
        for n in _ops_in(found, len(self.ops)):
            high, low = found[f"a{n}_0"], found[f"a{n}_1"]
            high, low = np.ma.filled(high, -np.inf), np.ma.filled(low, np.inf)  # type: ignore[no-untyped-call]
            self._high[n][at] = np.maximum(self._high[n][at], high)  # NaN stays
            self._low[n][at] = np.minimum(self._low[n][at], low)

    def _placed(self, row: Whole, line: Whole) -> Whole:
        """Places of lines among those that have a row."""
        place = np.empty(len(row), dtype=np.int64)
        for one in np.unique(row).tolist():
            own = row == one
            place[own] = self._places[one][line[own]]
        assert (place >= 0).all(), "a line has a row that its stage has not"
        return place

    def row_cells(self, row: int) -> dict[str, tuple[Array, Mask]]:
        """For each op the first NaN, else Inf, else the number of largest magnitude of one row, as lines that may have
        it x columns; and the mask of missing ones."""
        if not self._begun:
            self._begin()
        own = slice(int(self._first[row]), int(self._first[row + 1]))
        with np.errstate(invalid="ignore"):
            return {
                op: (np.where(high < low, np.nan, np.where(np.isnan(high) | (high >= -low), high, low)), high < low)
                for op, high, low in zip(self.ops, self._high[:, own], self._low[:, own], strict=True)
            }


def _ops_in(found: Found, ops: int) -> list[int]:
    """Ops that the files of a part have."""
    return [n for n in range(ops) if f"a{n}_0" in found]


def heatmaps(rows: Rows, plan: ReportPlan, signal: SignalPlan) -> dict[str, Cells]:
    """Cells of every op of a signal; a survey of ``rows`` has made the table ``stages``."""
    list_members(rows, signal)
    sums = HeatmapSums(plan, signal, len(rows.directories))
    sums.add(sums.query(rows))
    return sums.cells()


def list_lines(rows: Rows, columns: Mapping[str, Sequence[int]]) -> None:
    """Add to the table ``stages``, which a survey has made, a line for each directory of ``rows``."""
    for name, values in columns.items():
        rows.connection.execute(f"ALTER TABLE stages ADD COLUMN IF NOT EXISTS {quoted(name)} INTEGER")
        fill(rows.connection, "added", {"directory": "INTEGER", "cell": "INTEGER"}, enumerate(map(int, values)))
        rows.connection.execute(
            f"UPDATE stages SET {quoted(name)} = a.cell FROM added AS a WHERE a.directory = stages.directory"  # noqa: S608
        )


def list_members(rows: Rows, signal: SignalPlan) -> None:
    """Make the table ``members``: the row and the place in it of each name of a signal."""
    listed = [
        (member.pp_stage, member.vpp_stage, member.name, row, n)
        for row, members in enumerate(signal.members)
        for n, member in enumerate(members)
    ]
    columns = dict.fromkeys((PP_STAGE, STAGE, NAME, "row", "member"), "INTEGER") | {NAME: "VARCHAR"}
    fill(rows.connection, "members", columns, listed)


def _aggregates(op: str, place: str) -> list[str]:
    """Aggregates of an op in a cell: largest magnitude, twice the first place that has it (one more if it is negative),
    smallest magnitude, place of the first of the worst, and the numbers of NaN and Inf."""
    x = f"v.{quoted(op)}"
    size = f"CASE WHEN isfinite({x}) THEN abs({x}) END"
    # The bits of numbers that are not negative are in the order of the numbers. A whole number of magnitude and place
    # takes half the time of a row of both as the key of arg_max.
    ordered = f"abs({x})::BIT::BIGINT::HUGEINT * {LAST_PLACE + 1} + {LAST_PLACE} - (2 * ({place}) + ({x} < 0)::INTEGER)"
    kind = f"CASE WHEN isnan({x}) THEN 0 WHEN {x} = 'inf'::DOUBLE THEN {KIND} WHEN isinf({x}) THEN {KIND + 1} END"
    return [
        f"max({size})",
        f"({LAST_PLACE} - max({ordered}) FILTER (isfinite({x})) % {LAST_PLACE + 1})::BIGINT",
        f"min({size})",
        f"min(2 * ({place}) + {kind})",
        f"count(*) FILTER (isnan({x}))",
        f"count(*) FILTER (isinf({x}))",
    ]


def grouped(
    rows: Rows, signal: SignalPlan, columns: Columns, aggregates: Mapping[int, Sequence[str]], group: str, extra: str
) -> Found:
    """Query ``line`` and ``start`` of every cell that has a number, and ``a{op}_{aggregate}``."""
    chosen = ", ".join(f"{sql} AS a{n}_{m}" for n, of_op in aggregates.items() for m, sql in enumerate(of_op))
    query = (
        f"SELECT {group} AS line, {columns.sql()} AS start{', ' * bool(chosen)}{chosen} "  # noqa: S608 - our own words
        f"FROM {rows.view(signal.signal)} AS v JOIN stages AS s ON s.directory = v.directory "
        "JOIN members AS w ON w.pp_stage = s.pp_stage AND w.vpp_stage = coalesce(v.vpp_stage, 0) "
        f"AND w.name = coalesce(v.name, '') {extra} GROUP BY 1, 2"
    )
    found: dict[str, Any] = rows.connection.execute(query).fetchnumpy()
    return found
