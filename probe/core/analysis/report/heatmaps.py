"""Heatmaps of a run, with as many cells as the page has room for; DuckDB reads the files.

A cell is about one row of the page and one column, over all ranks and micro steps. It keeps the number of largest
magnitude as it was written, and its place; NaN and Inf take precedence over every number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from probe.core.analysis.report.layout import Columns, ReportPlan, SignalPlan
from probe.core.storage.duckdb_reader import Rows, fill
from probe.core.storage.layout import NAME, PP_STAGE, STAGE
from probe.core.storage.sql import quoted

Array = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

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
    bad: Whole
    """Count of numbers that are NaN or Inf."""
    places: CellPlaces
    """Places of ``value``."""


class _Packing(NamedTuple):
    """Packing of a place into one number: the step counts most, then directory, micro step and member."""

    directories: int
    micro_steps: int
    members: int

    def sql(self) -> str:
        return (
            f"((v.step * {self.directories} + v.directory) * {self.micro_steps} + coalesce(v.micro_step, 0)) "
            f"* {self.members} + w.member"
        )

    def places(self, packed: Whole) -> CellPlaces:
        rest, member = np.divmod(packed, self.members)
        rest, micro_step = np.divmod(rest, self.micro_steps)
        step, directory = np.divmod(rest, self.directories)
        return CellPlaces(step, directory, micro_step, member)


def heatmaps(rows: Rows, plan: ReportPlan, signal: SignalPlan) -> dict[str, Cells]:
    """Cells of every op of a signal."""
    _list_members(rows, signal)
    packing = _Packing(max(len(rows.directories), 1), plan.micro_steps, signal.most_members)
    place = packing.sql()
    shape = (len(signal.labels), len(plan.columns.starts))
    found = _grouped(
        rows, signal, plan.columns, {op: _aggregates(op, place) for op in signal.ops}, group="w.row", extra=""
    )
    where = found["line"], plan.columns.of(found["start"])
    return {op: _cells(n, found, where, shape, packing) for n, op in enumerate(signal.ops)}


def ranks(rows: Rows, plan: ReportPlan, signal: SignalPlan, lines: Sequence[int]) -> dict[str, tuple[Array, Mask]]:
    """Numbers of each rank, for ``signal.rank_ops``: arrays of rows x lines x columns, and masks of missing ones.

    Args:
        lines: for each directory the line that its rank belongs to.
    """
    fill(rows.connection, "lines", {"directory": "INTEGER", "line": "INTEGER"}, enumerate(lines))
    number = max(lines, default=0) + 1
    aggregates = {op: [f"arg_max(v.{quoted(op)}, abs(v.{quoted(op)}))"] for op in signal.rank_ops}
    group, extra = f"w.row * {number} + l.line", "JOIN lines l ON l.directory = v.directory"
    found = _grouped(rows, signal, plan.rank_columns, aggregates, group, extra)
    shape = (len(signal.labels) * number, len(plan.rank_columns.starts))
    where = found["line"], plan.rank_columns.of(found["start"])
    full = (len(signal.labels), number, shape[1])
    result = {}
    for n, op in enumerate(signal.rank_ops):
        value, missing = _spread(found[f"a{n}_0"], where, shape)
        result[op] = value.reshape(full), missing.reshape(full)
    return result


def _list_members(rows: Rows, signal: SignalPlan) -> None:
    listed = [
        (member.pp_stage, member.vpp_stage, member.name, row, n)
        for row, members in enumerate(signal.members)
        for n, member in enumerate(members)
    ]
    columns = dict.fromkeys((PP_STAGE, STAGE, NAME, "row", "member"), "INTEGER") | {NAME: "VARCHAR"}
    fill(rows.connection, "members", columns, listed)


def _aggregates(op: str, place: str) -> list[str]:
    """Aggregates of an op in a cell: value, its place, smallest magnitude, place of the first of the worst, and the
    number of those that are not finite."""
    x = f"v.{quoted(op)}"
    size = f"CASE WHEN isfinite({x}) THEN abs({x}) END"
    kind = f"CASE WHEN isnan({x}) THEN 0 WHEN {x} = 'inf'::DOUBLE THEN {KIND} WHEN isinf({x}) THEN {KIND + 1} END"
    return [
        f"arg_max({x}, {size})",
        f"arg_max({place}, {size})",
        f"min({size})",
        f"min(2 * ({place}) + {kind})",
        f"count(*) FILTER (NOT isfinite({x}))",
    ]


def _grouped(
    rows: Rows, signal: SignalPlan, columns: Columns, aggregates: Mapping[str, Sequence[str]], group: str, extra: str
) -> dict[str, Any]:
    """Query ``line`` and ``start`` of every cell that has a number, and ``a{op}_{aggregate}``."""
    chosen = ", ".join(
        f"{sql} AS a{n}_{m}" for n, of_op in enumerate(aggregates.values()) for m, sql in enumerate(of_op)
    )
    query = (
        f"SELECT {group} AS line, {columns.sql()} AS start{', ' * bool(chosen)}{chosen} "  # noqa: S608 - our own words
        f"FROM {rows.view(signal.signal)} AS v JOIN stages AS s ON s.directory = v.directory "
        "JOIN members AS w ON w.pp_stage = s.pp_stage AND w.vpp_stage = coalesce(v.vpp_stage, 0) "
        f"AND w.name = coalesce(v.name, '') {extra} GROUP BY 1, 2"
    )
    found: dict[str, Any] = rows.connection.execute(query).fetchnumpy()
    return found


def _cells(n: int, found: Mapping[str, Any], where: Any, shape: tuple[int, int], packing: _Packing) -> Cells:
    value, missing = _spread(found[f"a{n}_0"], where, shape)
    least, _ = _spread(found[f"a{n}_2"], where, shape)
    place = _spread_whole(found[f"a{n}_1"], where, shape, 0)
    worst = _spread_whole(found[f"a{n}_3"], where, shape, -1)
    kind, first = np.divmod(worst, KIND)
    first, negative = np.divmod(first, 2)
    value[worst >= 0] = np.nan
    infinite = (worst >= 0) & (kind == 1)
    value[infinite] = np.where(negative[infinite], -np.inf, np.inf)
    return Cells(
        value,
        missing & (worst < 0),
        least,
        _spread_whole(found[f"a{n}_4"], where, shape, 0),
        packing.places(np.where(worst >= 0, first, place)),
    )


def _spread(found: Any, where: Any, shape: tuple[int, int]) -> tuple[Array, Mask]:
    """Spread cells to their places, with NaN elsewhere; also return the mask of missing cells."""
    spread, missing = np.full(shape, np.nan), np.ones(shape, dtype=np.bool_)
    missing[where] = np.ma.getmaskarray(found)  # type: ignore[no-untyped-call]
    spread[where] = np.where(missing[where], np.nan, found)
    return spread, missing


def _spread_whole(found: Any, where: Any, shape: tuple[int, int], otherwise: int) -> Whole:
    spread = np.full(shape, otherwise, dtype=np.int64)
    spread[where] = np.where(np.ma.getmaskarray(found), otherwise, found)  # type: ignore[no-untyped-call]
    return spread
