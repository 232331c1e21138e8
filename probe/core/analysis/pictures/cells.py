"""Cells of pictures: of the numbers of a line and a column the extremes, the counts, and the place of the one shown.

A cell shows its first NaN, else its first Inf, else the first number of largest magnitude. DuckDB makes the cells of
the rows of files; cells of parts of a run are merged in any order, with the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from probe.core.storage.duckdb_reader import Connection

Array = npt.NDArray[Any]
Whole = npt.NDArray[np.int64]

LAST = (1 << 60) - 1
"""Beyond twice any place."""


class CellKind(NamedTuple):
    """Array of cells."""

    type: str
    nothing: float
    """Value of a cell without numbers."""
    sql: str
    """SQL of a cell of the number ``x``; NaN is greater than all numbers to DuckDB."""


KINDS = {
    "minimum": CellKind("<f8", np.nan, "min({x})"),
    "maximum": CellKind("<f8", np.nan, "-min(-{x})"),
    "least": CellKind("<f8", np.nan, "min(abs({x}))"),
    # The bits of magnitudes are in the order of the magnitudes, with Inf and NaN last. A whole number of magnitude and
    # place takes half the time of a row of both as the key of arg_max.
    "place": CellKind(
        "<i8",
        -1,
        f"({LAST} - max(abs({{x}})::BIT::BIGINT::HUGEINT * {LAST + 1} "
        f"+ {LAST} - (2 * ({{place}}) + ({{x}} < 0)::INTEGER)) % {LAST + 1})::BIGINT",
    ),
    "nan": CellKind("<u4", 0, "sum(isnan({x})::INTEGER)"),
    "inf": CellKind("<u4", 0, "sum(isinf({x})::INTEGER)"),
    "count": CellKind("<u4", 0, "count({x})"),
}
"""Arrays of cells: ``minimum`` and ``maximum`` of all numbers but NaN, ``least`` magnitude of the finite ones; twice
the ``place`` of the number that is shown, and one more if it is negative; counts of NaN, of Inf, and of numbers."""


class Places(NamedTuple):
    """Places as one number each: the step counts most, then directory (or rank), micro step and member."""

    directories: int
    micro_steps: int = 1
    members: int = 1

    def sql(self, directory: str) -> str:
        """SQL of the place of a row of ``v`` in a directory, and of the member ``w.member`` if there are several."""
        place = f"v.step::BIGINT * {self.directories} + {directory}"
        if self.micro_steps > 1:
            place = f"({place}) * {self.micro_steps} + coalesce(v.micro_step, 0)"
        return f"({place}) * {self.members} + w.member" if self.members > 1 else place

    def of(self, cells: Mapping[str, Array]) -> CellPlaces:
        """Places of the numbers that cells show; 0 for a cell without numbers."""
        rest, member = np.divmod(np.maximum(cells["place"], 0) // 2, self.members)
        rest, micro_step = np.divmod(rest, self.micro_steps)
        step, directory = np.divmod(rest, self.directories)
        return CellPlaces(step, directory, micro_step, member)


class CellPlaces(NamedTuple):
    """Places of numbers, each an array."""

    step: Whole
    directory: Whole
    micro_step: Whole
    member: Whole
    """Index among the names that a row of the page stands for."""


RANKS = Places(1 << 24)
"""Places by step and rank."""


class CellArrays(dict[str, Array]):
    """Cells of lines x columns: some of the arrays of :data:`KINDS`."""

    @classmethod
    def of(cls, lines: int, columns: int, kinds: Sequence[str] = tuple(KINDS)) -> CellArrays:
        """Return cells without numbers."""
        return cls({name: np.full((lines, columns), KINDS[name].nothing, KINDS[name].type) for name in kinds})

    @property
    def shape(self) -> tuple[int, int]:
        lines, columns = self["minimum"].shape
        return lines, columns

    def take(self, lines: Any, columns: Any) -> CellArrays:
        """Return a copy of some lines and columns, in the order of their indices."""
        return CellArrays({name: array[np.ix_(lines, columns)] for name, array in self.items()})

    def merge(self, lines: Any, columns: Any, other: Mapping[str, Array]) -> None:
        """Merge cells into those at ``lines`` and ``columns``, of which no pair comes twice."""
        at = lines, columns
        for name, value in together({name: array[at] for name, array in self.items()}, other).items():
            self[name][at] = value

    def grouped(self, number: int) -> CellArrays:
        """Return cells of ``number`` columns each, the last one of those that are left."""
        lines, columns = self.shape
        result = CellArrays.of(lines, -(-columns // number), tuple(self))
        for first in range(number):
            part = {name: array[:, first::number] for name, array in self.items()}
            result.merge(slice(None), slice(part["minimum"].shape[1]), part)
        return result

    def shown(self) -> Array:
        """Return the number that each cell shows; NaN for one without numbers, too."""
        low, high = self["minimum"], self["maximum"]
        below = np.abs(low) > np.abs(high)
        if "place" in self:  # of two numbers of equal magnitude the first
            below |= (np.abs(low) == np.abs(high)) & (self["place"] % 2 == 1)
        value: Array = np.where(below, low, high)
        value[self["nan"] > 0] = np.nan
        return value

    def is_missing(self) -> Array:
        """Return which cells have no number."""
        missing: Array = np.isnan(self["minimum"]) & (self["nan"] == 0)
        return missing


MERGED: dict[str, Callable[[Array, Array], Array]] = {
    "minimum": np.fmin,
    "maximum": np.fmax,
    "least": np.fmin,
    "nan": np.add,
    "inf": np.add,
    "count": np.add,
}


def together(one: Mapping[str, Array], other: Mapping[str, Array]) -> dict[str, Array]:
    """Return the cells of the numbers of both."""
    result = {name: MERGED[name](array, other[name]) for name, array in one.items() if name in MERGED}
    if "place" in one:
        mine, theirs = _severity(one), _severity(other)
        larger = np.where(theirs > mine, other["place"], one["place"])
        result["place"] = np.where(mine == theirs, np.minimum(one["place"], other["place"]), larger)
    return result


def _severity(cells: Mapping[str, Array]) -> Whole:
    """Order of the numbers that cells show: none, then by magnitude, Inf, NaN."""
    size = np.fmax(np.abs(cells["minimum"]), np.abs(cells["maximum"]))
    size[cells["nan"] > 0] = np.nan
    return np.where(np.isnan(size) & (cells["nan"] == 0), -1, size.view("<i8"))


def cell_query(
    keys: Mapping[str, str],
    numbers: Mapping[str, str],
    source: str,
    where: str = "true",
    place: str = RANKS.sql("v.rank"),
    kinds: Sequence[str] = tuple(KINDS),
) -> str:
    """SQL of the cells of some numbers, with a column for each kind of each.

    Args:
        keys: SQL of the columns that distinguish cells, by name.
        numbers: SQL of the numbers by the beginning of the names of their columns.
        source: SQL after FROM, of which ``v`` has the columns ``step`` and ``rank``.
        where: SQL condition.
        place: SQL of the place of a number.
    """
    columns = [f"{sql} AS {name}" for name, sql in keys.items()]
    for name, x in numbers.items():
        columns += [f"{KINDS[kind].sql.format(x=x, place=place)} AS {name}{kind}" for kind in kinds]
    having = " + ".join(f"count({x})" for x in numbers.values()) or "1"
    return f"SELECT {', '.join(columns)} FROM {source} WHERE {where} GROUP BY ALL HAVING {having} > 0"  # noqa: S608 - our own words


def fetched(connection: Connection, query: str) -> dict[str, Array]:
    """Return the columns of a query of cells, each with its type, and what stands for nothing where there is none."""
    result: dict[str, Array] = {}
    for name, column in connection.execute(query).fetchnumpy().items():
        kind = KINDS.get(name.rpartition("_")[2], CellKind("<i8", 0, ""))
        if isinstance(column, np.ma.MaskedArray):
            column = column.filled(kind.nothing)  # type: ignore[no-untyped-call]  # noqa: PLW2901
        result[name] = column.astype(kind.type)
        if name.endswith("least"):
            result[name][np.isinf(result[name])] = np.nan
    return result


class Span(NamedTuple):
    """Steps that are asked for, both included."""

    first: int
    last: int

    def sql(self) -> str:
        """Return an SQL condition of ``v.step``."""
        return f"v.step BETWEEN {self.first} AND {self.last}"


class Picture(NamedTuple):
    """Cells with their lines and columns."""

    lines: list[Any]
    """Labels of rows, ranks, or names of numbers."""
    steps: list[tuple[int, int]]
    """First and last step of each column."""
    cells: CellArrays
    exact: bool
    """True if each column is one step."""


def picture(lines: Sequence[Any], found: Mapping[str, Array], columns: int, width: int = 1) -> Picture:
    """Return a picture of at most ``columns`` columns.

    Args:
        found: cells with the index of their ``line`` and their ``block``.
        width: steps of a block.
    """
    blocks = np.unique(found["block"])
    cells = CellArrays.of(len(lines), len(blocks))
    cells.merge(found["line"], np.searchsorted(blocks, found["block"]), found)
    return narrowed(lines, [(n * width, n * width + width - 1) for n in blocks.tolist()], cells, columns)


def narrowed(lines: Sequence[Any], steps: Sequence[tuple[int, int]], cells: CellArrays, columns: int) -> Picture:
    """Return a picture of at most ``columns`` columns, each of as many of ``steps``."""
    number = -(-len(steps) // columns) if steps else 1
    spans = [(steps[n][0], steps[min(n + number, len(steps)) - 1][1]) for n in range(0, len(steps), number)]
    cells = cells.grouped(number) if number > 1 else cells
    return Picture(list(lines), spans, cells, number == 1 and all(first == last for first, last in spans))
