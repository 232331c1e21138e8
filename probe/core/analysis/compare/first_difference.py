"""Rows that differ first, in causal order."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from itertools import groupby
from typing import NamedTuple

from probe.core.analysis.compare.compared_piece import ComparedPiece, PieceResult, opened_piece
from probe.core.analysis.compare.differences import DifferenceTables, PieceDifferences, difference, selected_numbers
from probe.core.analysis.compare.pairing import RowPairing
from probe.core.analysis.compare.piece_rows import PieceRows, positions
from probe.core.naming import signal_of
from probe.core.rules.causal_order import position
from probe.core.storage.duckdb_reader import Rows
from probe.core.storage.layout import CALL, MICRO_STEP
from probe.core.storage.problems import Problems


class Number(NamedTuple):
    """One number of a row in both runs."""

    op: str
    a: float | None
    b: float | None
    difference: float
    """Relative difference, as :mod:`probe.core.analysis.compare.differences` measures it; infinite if just one is NaN,
    or infinite. For counts and fractions of zeros the absolute one."""
    beyond: bool
    """True if it is more than the tolerance."""


class DifferingRow(NamedTuple):
    """Row that differs."""

    signal: str
    step: int
    """Step of A."""
    micro_step: int
    micro_stepped: bool
    """True if rows of the signal are distinguished by micro step."""
    rank: int
    """Rank of A."""
    stage: int
    name: str
    """Name in A."""
    name_b: str
    call: int
    shape: str
    shape_b: str
    dtype: str
    dtype_b: str
    excess: float
    """Largest difference of its numbers, in multiples of the tolerance."""
    numbers: tuple[Number, ...]
    """Numbers in order of their difference, the largest first."""
    dtypes_differ: bool = False
    """True if its dtypes differ, where they are compared."""

    @property
    def shapes_differ(self) -> bool:
        """Comparison by sizes, where both are known: frameworks write ``[3, 2]`` or ``(3, 2)``."""
        return bool(self.shape and self.shape_b) and _sizes(self.shape) != _sizes(self.shape_b)


def _sizes(shape: str) -> list[str]:
    return re.findall("[0-9]+", shape)


class RowGroup(NamedTuple):
    """Rows of one signal in one micro step."""

    step: int
    micro_step: int
    signal: str
    beyond: int


class Request(NamedTuple):
    """Request for the rows that differ first."""

    groups: tuple[RowGroup, ...]
    """Groups that hold the first rows, in causal order."""
    most: int
    """Number of rows that are wanted of each group."""
    micro_stepped: frozenset[str]
    """Signals with rows for each micro step."""
    order: tuple[int, int]
    """Rank and step of A in whose order of execution names are listed."""

    def concerns(self, piece: ComparedPiece) -> bool:
        """Return whether the piece may have some of it."""
        return self.has_order(piece) or any(_has(piece, group.step) for group in self.groups)

    def has_order(self, piece: ComparedPiece) -> bool:
        """Return whether the piece has the rows in whose order names are listed."""
        rank, step = self.order
        return _has(piece, step) and rank in piece.ranks


def _has(piece: ComparedPiece, step: int) -> bool:
    return piece.steps is None or piece.steps[0] <= step <= piece.steps[1]


class Found(NamedTuple):
    """Rows of a piece."""

    rows: list[tuple[tuple[int, ...], DifferingRow]]
    """First rows of each group that differ, each with its sort key: the group, the position in the order of execution,
    the rank."""
    executed: dict[str, dict[str, int]]
    """Positions of names in the order of execution, by signal; empty if another piece has them."""
    problems: list[tuple[tuple[int, ...], Problems]]
    """Problems of A's rows that were read for their order, with their sort keys."""


def request(tables: DifferenceTables, most: int, order: tuple[int, int]) -> Request:
    """Return the request for the first ``most`` rows that are beyond the tolerance.

    Order: step; then weights, then one micro step after the other, forward before backward, then signals with one value
    a step; then as the rows were executed in A; then by rank.
    """
    several = tables.connection.execute("SELECT DISTINCT signal FROM by_step WHERE micro_step > 0").fetchall()
    micro_stepped = frozenset(["actv", "actv_grad", *(signal for (signal,) in several)])
    return Request(tuple(_first_groups(tables, most, micro_stepped)), most, micro_stepped, order)


def _first_groups(tables: DifferenceTables, most: int, micro_stepped: frozenset[str]) -> Iterator[RowGroup]:
    """Groups that hold the first ``most`` rows, in causal order."""

    def causal_order(group: RowGroup) -> tuple[int, int, int, int, str]:
        micro_step = group.micro_step if group.signal in micro_stepped else None
        return *position(group.step, signal_of(group.signal).phase, micro_step), group.signal

    query = "SELECT coalesce(max(n), 0) FROM (SELECT count(*) AS n FROM by_step GROUP BY step)"
    widest = int(tables.connection.execute(query).fetchall()[0][0])
    query = "SELECT step, micro_step, signal, beyond FROM by_step WHERE beyond > 0 ORDER BY step LIMIT ?"
    groups = [RowGroup(*row) for row in tables.connection.execute(query, [most * max(1, widest)]).fetchall()]
    number = 0
    for group in sorted(groups, key=causal_order):
        if number >= most:
            return
        number += group.beyond
        yield group


def first_rows(
    piece: ComparedPiece, pairing: RowPairing, request: Request, duplicated: Collection[str]
) -> tuple[Found, PieceResult]:
    """Return the rows of a piece that are wanted."""
    done: list[PieceResult] = []
    rows_found = Found([], {}, [])
    with opened_piece(piece, done) as opened:
        differences = PieceDifferences(PieceRows(opened, pairing), duplicated)
        numbers = {group: n for n, group in enumerate(request.groups) if _has(piece, group.step)}
        for (signal, step), same in groupby(sorted(numbers, key=_place), key=_place):
            of_step = {group.micro_step: numbers[group] for group in same}
            _add_first(rows_found, differences, signal, step, of_step, request)
        if request.has_order(piece):
            for n, signal in enumerate(pairing.signals):
                with _problems_of(opened.a, rows_found, (_LAST, n)):
                    rows_found.executed[signal] = _executed(opened.a, signal, request.order)
    return rows_found, done[0]


def _place(group: RowGroup) -> tuple[str, int]:
    return group.signal, group.step


def _add_first(
    rows_found: Found,
    differences: PieceDifferences,
    signal: str,
    step: int,
    groups: Mapping[int, int],
    request: Request,
) -> None:
    """Add the first rows of a step that differ, for each micro step in ``groups``.

    Args:
        groups: micro steps with the number of their group.
    """
    connection = differences.connection
    measure = differences.measure(signal)
    fields = ("coalesce(a.own, '')", "coalesce(b.own, '')", "a.shape", "b.shape", "a.dtype", "b.dtype")
    named = [f"{cell} AS about{n}" for n, cell in enumerate(fields)]
    named.append(f"{differences.dtypes_differ(signal)} AS dtypes_differ")
    pairs = differences.pairs(signal, step, step, *named, *selected_numbers(measure.ops, measure))
    micro_steps = ", ".join(map(str, sorted(groups)))
    connection.execute(
        "CREATE OR REPLACE TEMP TABLE differing AS "  # noqa: S608 - our own numbers
        f"SELECT * FROM ({pairs}) WHERE excess > 1 AND micro_step IN ({micro_steps})"
    )
    query = "SELECT rank FROM differing GROUP BY rank ORDER BY rank"
    by_key: dict[int, list[tuple[tuple[int, ...], DifferingRow]]] = {}
    first = next(n for n, group in enumerate(request.groups) if group.signal == signal)
    for (rank,) in connection.execute(query).fetchall():
        with _problems_of(differences.rows.a, rows_found, (first, step, rank)):
            places = positions(differences.rows.a, signal, step, rank)
        for row in _rows(differences, signal, step, rank, request):
            group = groups[row.micro_step]
            key = (group, places.get(_key(row), len(places)), rank)
            by_key.setdefault(group, []).append((key, row))
        for group, rows in by_key.items():
            by_key[group] = sorted(rows, key=lambda pair: (pair[0], _key(pair[1])))[: request.most]
    rows_found.rows.extend(pair for rows in by_key.values() for pair in rows)


_LAST = sys.maxsize
"""Sort key of what comes after all groups."""


@contextmanager
def _problems_of(rows: Rows, rows_found: Found, key: tuple[int, ...]) -> Iterator[None]:
    """Record the problems of the block apart, with their sort key."""
    others, rows.problems = rows.problems, Problems()
    try:
        yield
    finally:
        if rows.problems.kept:
            rows_found.problems.append((key, rows.problems))
        rows.problems = others


def _rows(differences: PieceDifferences, signal: str, step: int, rank: int, request: Request) -> Iterator[DifferingRow]:
    ops = differences.measure(signal).ops
    cursor = differences.connection.execute("SELECT * FROM differing WHERE rank = ?", [rank])
    columns = [column[0] for column in cursor.description]
    for cells in cursor.fetchall():
        row = dict(zip(columns, cells, strict=True))
        name, name_b, shape, shape_b, dtype, dtype_b = (row[f"about{n}"] or "" for n in range(6))
        values = [(row[f"e{n}"], op, row[f"a{n}"], row[f"b{n}"]) for n, op in enumerate(ops)]
        numbers = tuple(
            Number(op, a, b, difference(op, a, b, excess, differences.pairing.relative), excess > 1)
            for excess, op, a, b in sorted(values, key=lambda cells: -cells[0])
        )
        yield DifferingRow(
            signal, step, row[MICRO_STEP], signal in request.micro_stepped, row["rank"], row["stage"], name, name_b,
            row[CALL], shape, shape_b, dtype, dtype_b, row["excess"], numbers, row["dtypes_differ"],
        )  # fmt: skip


_Key = tuple[int, str, int, int]


def _key(row: DifferingRow) -> _Key:
    return row.stage, row.name, row.micro_step, row.call


def _executed(rows: Rows, signal: str, order: tuple[int, int]) -> dict[str, int]:
    order_of_names: dict[str, int] = {}
    for (_, name, *_), place in positions(rows, signal, order[1], order[0]).items():
        order_of_names.setdefault(name, place)
    return order_of_names
