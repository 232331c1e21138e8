"""Cells of heatmaps and curves: for each line and column the extremes, the counts of NaN and Inf, and a rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from probe.core.storage.duckdb_reader import Connection
from probe.core.storage.sql import quoted

Array = npt.NDArray[Any]
Whole = npt.NDArray[np.int64]

KINDS = {"minimum": "<f8", "maximum": "<f8", "nan": "<u4", "inf": "<u4", "rank": "<i4", "count": "<u4"}
"""Arrays of cells, with their types."""
NOTHING = {"minimum": np.nan, "maximum": np.nan, "nan": 0, "inf": 0, "rank": -1, "count": 0}


@dataclass
class CellArrays:
    """Cells of lines x columns."""

    minimum: Array
    """Lowest of all numbers but NaN, the infinities included; NaN if there is none."""
    maximum: Array
    nan: Array
    inf: Array
    rank: Array
    """Lowest rank with a NaN; without a NaN, the lowest rank that has the maximum; -1 for a cell without numbers."""
    count: Array
    """Count of numbers."""

    @classmethod
    def of(cls, lines: int, columns: int) -> CellArrays:
        """Return cells without numbers."""
        return cls(**{name: np.full((lines, columns), NOTHING[name], kind) for name, kind in KINDS.items()})

    @property
    def shape(self) -> tuple[int, int]:
        lines, columns = self.count.shape
        return lines, columns

    def items(self) -> Iterator[tuple[str, Array]]:
        """Yield the arrays with their names."""
        for each in fields(self):
            yield each.name, getattr(self, each.name)

    def take(self, lines: Any, columns: Any) -> CellArrays:
        """Return a copy of some lines and columns, in the order of their indices."""
        return CellArrays(**{name: array[np.ix_(lines, columns)] for name, array in self.items()})

    def widened(self, lines: int, columns: int) -> CellArrays:
        """Return a copy with more lines and columns after those that are there."""
        wide = CellArrays.of(lines, columns)
        own = tuple(map(slice, self.shape))
        for name, array in wide.items():
            array[own] = getattr(self, name)
        return wide

    def merge(self, lines: Any, columns: Any, other: Mapping[str, Array]) -> None:
        """Merge cells into those at ``lines`` and ``columns``, of which no pair comes twice."""
        at = lines, columns
        mine = {name: array[at] for name, array in self.items()}
        for name, value in together(mine, other).items():
            getattr(self, name)[at] = value

    def grouped(self, number: int) -> CellArrays:
        """Return cells of ``number`` columns each, the last one of those that are left."""
        lines, columns = self.shape
        result = CellArrays.of(lines, -(-columns // number))
        for first in range(number):
            part = {name: array[:, first::number] for name, array in self.items()}
            result.merge(slice(None), slice(part["count"].shape[1]), part)
        return result


def together(one: Mapping[str, Array], other: Mapping[str, Array]) -> dict[str, Array]:
    """Return the cells of the numbers of both."""
    with np.errstate(invalid="ignore"):
        larger = other["maximum"] > one["maximum"]
        larger |= np.isnan(one["maximum"]) & ~np.isnan(other["maximum"])
        same = (other["maximum"] == one["maximum"]) | (np.isnan(one["maximum"]) & np.isnan(other["maximum"]))
    lower = np.minimum(_known(one["rank"]), _known(other["rank"]))
    rank = np.where(larger, other["rank"], np.where(same, lower, one["rank"]))
    nans_one, nans_other = one["nan"] > 0, other["nan"] > 0
    rank = np.where(nans_one & ~nans_other, one["rank"], np.where(nans_other & ~nans_one, other["rank"], rank))
    rank = np.where(nans_one & nans_other, lower, rank)
    return {
        "minimum": np.fmin(one["minimum"], other["minimum"]),
        "maximum": np.fmax(one["maximum"], other["maximum"]),
        **{name: one[name] + other[name] for name in ("nan", "inf", "count")},
        "rank": np.where(rank == _HIGH, -1, rank),
    }


_HIGH = np.iinfo(np.int32).max


def _known(rank: Array) -> Array:
    return np.where(rank < 0, _HIGH, rank)


class CellQuery:
    """Query of cells.

    Args:
        keys: SQL of the columns that distinguish cells, by name; the last one is a whole number.
        source: SQL after FROM, with the columns ``rank`` and ``op``.
        where: SQL condition.
    """

    def __init__(self, keys: Mapping[str, str], op: str, source: str, where: str = "true") -> None:
        named = ", ".join(f"{sql} AS {name}" for name, sql in keys.items())
        self._by = ", ".join(keys)
        # NaN is greater than all numbers to DuckDB: the minimum is right without a condition, which costs more.
        self._rows = f"(SELECT {named}, v.rank, {quoted(op)} AS x FROM {source} WHERE {where})"  # noqa: S608 - quoted
        self._cells = (
            f"SELECT {self._by}, min(x) AS minimum, max(x) AS maximum, count(x) AS count, "  # noqa: S608
            "sum(isfinite(x)::INTEGER) AS finite, "
            "arg_max(rank, (x, -rank)) FILTER (isfinite(x)) AS rank "
            f"FROM {self._rows} GROUP BY ALL HAVING count(x) > 0"
        )
        self._bad = (
            f"SELECT {self._by}, count_if(isnan(x)) AS nan, count_if(isinf(x)) AS inf, "  # noqa: S608
            "min(rank) FILTER (isnan(x)) AS nan_rank, min(rank) FILTER (x = 'inf'::DOUBLE) AS inf_rank, "
            "min(rank) FILTER (x = '-inf'::DOUBLE) AS least_rank "
            f"FROM {self._rows} WHERE NOT isfinite(x) GROUP BY ALL"
        )
        # The largest number beside NaN, where there is one.
        self._beside = (
            f"SELECT {self._by}, max(x) AS beside FROM {self._rows} "  # noqa: S608
            f"WHERE NOT isnan(x) AND {{last}} BETWEEN {{low}} AND {{high}} GROUP BY ALL"
        )

    def make(self, connection: Connection, table: str) -> None:
        """Make the temporary ``table`` of the cells, with the columns of the keys and of :data:`KINDS`."""
        connection.execute(f"CREATE OR REPLACE TEMP TABLE cells AS {self._cells}")
        if not connection.execute("SELECT count(*) FROM cells WHERE finite < count").fetchone()[0]:
            chosen = f"SELECT {self._by}, minimum, maximum, 0 AS nan, 0 AS inf, rank, count FROM cells"  # noqa: S608
            connection.execute(f"CREATE OR REPLACE TEMP TABLE {table} AS {chosen}")
            return
        connection.execute(f"CREATE OR REPLACE TEMP TABLE bad AS {self._bad}")
        last = self._by.rpartition(", ")[2]
        low, high = connection.execute(f"SELECT min({last}), max({last}) FROM bad WHERE nan > 0").fetchone()  # noqa: S608
        ends = {"low": 1, "high": 0} if low is None else {"low": low, "high": high}
        beside = self._beside.format(last=last, **ends)
        connection.execute(
            f"CREATE OR REPLACE TEMP TABLE {table} AS "  # noqa: S608 - our own words
            f"SELECT {self._by}, minimum, CASE WHEN isnan(maximum) THEN beside ELSE maximum END AS maximum, "
            "coalesce(nan, 0) AS nan, coalesce(inf, 0) AS inf, "
            "CASE WHEN nan > 0 THEN nan_rank WHEN isfinite(maximum) THEN rank "
            "WHEN maximum > 0 THEN inf_rank ELSE least_rank END AS rank, "
            f"count FROM cells LEFT JOIN bad USING ({self._by}) LEFT JOIN ({beside}) USING ({self._by})"
        )


def fetched(connection: Connection, query: str) -> dict[str, Array]:
    """Return the columns of a table of cells; a missing number is NaN."""
    found: dict[str, Any] = connection.execute(query).fetchnumpy()
    result: dict[str, Array] = {}
    for name, column in found.items():
        if isinstance(column, np.ma.MaskedArray):
            column = column.filled(NOTHING.get(name, 0))  # type: ignore[no-untyped-call]  # noqa: PLW2901
        result[name] = column.astype(KINDS.get(name, "<i8"))
    return result
