"""Rows that differ first, in causal order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

from probe.core.analysis.compare.differences import DifferenceTables, difference, selected_numbers
from probe.core.naming import signal_of
from probe.core.rules.causal_order import position
from probe.core.storage.batches import steps as steps_of
from probe.core.storage.duckdb_reader import Rows
from probe.core.storage.layout import CALL, MICRO_STEP, cell_name


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

    @property
    def shapes_differ(self) -> bool:
        """Comparison by sizes, where both are known: frameworks write ``[3, 2]`` or ``(3, 2)``."""
        return bool(self.shape and self.shape_b) and _sizes(self.shape) != _sizes(self.shape_b)


def _sizes(shape: str) -> list[str]:
    return re.findall("[0-9]+", shape)


class _Group(NamedTuple):
    """Rows of one signal in one micro step."""

    step: int
    micro_step: int
    signal: str
    beyond: int


def first_rows(tables: DifferenceTables, most: int) -> list[DifferingRow]:
    """First ``most`` rows that are beyond the tolerance.

    Order: step; then weights, then one micro step after the other, forward before backward, then signals with one value
    a step; then as the rows were executed in A; then by rank.
    """
    groups = list(_first_groups(tables, most))
    found: list[DifferingRow] = []
    for signal in dict.fromkeys(group.signal for group in groups):
        found += _ordered(tables, signal, [group for group in groups if group.signal == signal])
    places = {(group.step, group.micro_step, group.signal): n for n, group in enumerate(groups)}
    return sorted(found, key=lambda row: places[row.step, row.micro_step, row.signal])[:most]


def _first_groups(tables: DifferenceTables, most: int) -> Iterator[_Group]:
    """Groups that hold the first ``most`` rows, in causal order."""
    micro_stepped = _micro_stepped(tables)

    def causal_order(group: _Group) -> tuple[int, int, int, int, str]:
        micro_step = group.micro_step if group.signal in micro_stepped else None
        return *position(group.step, signal_of(group.signal).phase, micro_step), group.signal

    query = "SELECT coalesce(max(n), 0) FROM (SELECT count(*) AS n FROM by_step GROUP BY step)"
    widest = int(tables.connection.execute(query).fetchall()[0][0])
    query = "SELECT step, micro_step, signal, beyond FROM by_step WHERE beyond > 0 ORDER BY step LIMIT ?"
    groups = [_Group(*row) for row in tables.connection.execute(query, [most * max(1, widest)]).fetchall()]
    taken = 0
    for group in sorted(groups, key=causal_order):
        if taken >= most:
            return
        taken += group.beyond
        yield group


def _micro_stepped(tables: DifferenceTables) -> frozenset[str]:
    """Signals with rows for each micro step."""
    several = tables.connection.execute("SELECT DISTINCT signal FROM by_step WHERE micro_step > 0").fetchall()
    return frozenset(["actv", "actv_grad", *(signal for (signal,) in several)])


def _ordered(tables: DifferenceTables, signal: str, groups: list[_Group]) -> list[DifferingRow]:
    """Rows of some groups of a signal, by step and as they were executed."""
    found: list[DifferingRow] = []
    for step, same in groupby(sorted(groups), key=lambda group: group.step):
        rows = list(_rows(tables, signal, step, {group.micro_step for group in same}))
        places = _positions(tables.sides.a.rows, signal, step, {row.rank for row in rows})
        found += sorted(rows, key=lambda row: (places[row.rank].get(_key(row), len(places[row.rank])), row.rank))
    return found


def _rows(tables: DifferenceTables, signal: str, step: int, micro_steps: Iterable[int]) -> Iterator[DifferingRow]:
    measure, micro_stepped = tables.measure(signal), signal in _micro_stepped(tables)
    about = ("coalesce(a.own, '')", "coalesce(b.own, '')", "a.shape", "b.shape", "a.dtype", "b.dtype")
    named = [f"{cell} AS about{n}" for n, cell in enumerate(about)]
    tables.scale(signal)
    pairs = tables.pairs(signal, step, step, *named, *selected_numbers(measure.ops, measure))
    wanted = ", ".join(map(str, sorted(micro_steps)))
    query = f"SELECT * FROM ({pairs}) WHERE excess > 1 AND micro_step IN ({wanted})"  # noqa: S608 - our own numbers
    cursor = tables.connection.execute(query)
    columns = [column[0] for column in cursor.description]
    for cells in cursor.fetchall():
        row = dict(zip(columns, cells, strict=True))
        name, name_b, shape, shape_b, dtype, dtype_b = (row[f"about{n}"] or "" for n in range(len(about)))
        each = [(row[f"e{n}"], op, row[f"a{n}"], row[f"b{n}"]) for n, op in enumerate(measure.ops)]
        numbers = tuple(
            Number(op, a, b, difference(op, a, b, excess, tables.relative), excess > 1)
            for excess, op, a, b in sorted(each, key=lambda cells: -cells[0])
        )
        yield DifferingRow(
            signal, step, row[MICRO_STEP], micro_stepped, row["rank"], row["stage"], name, name_b, row[CALL],
            shape, shape_b, dtype, dtype_b, row["excess"], numbers,
        )  # fmt: skip


_Key = tuple[int, str, int, int]


def _key(row: DifferingRow) -> _Key:
    return row.stage, row.name, row.micro_step, row.call


def _positions(rows: Rows, signal: str, step: int, ranks: Iterable[int]) -> dict[int, dict[_Key, int]]:
    """Positions of rows in the step's order of execution, by rank."""
    found: dict[int, dict[_Key, int]] = {}
    for rank in ranks:
        batches = [batch for each in steps_of(rows, rank, step, step, [signal]) for batch in each.batches]
        keys = [key for batch in batches for key in batch.keys]
        found[rank] = {(k.stage, cell_name(k), k.micro_step, k.call): n for n, k in enumerate(keys)}
    return found


def executed(tables: DifferenceTables, signal: str) -> dict[str, int]:
    """Positions of names in the order of execution of the first step of A that is compared, by its first rank."""
    places = _positions(tables.sides.a.rows, signal, tables.first_step, [tables.sides.ranks[0][0]])
    found: dict[str, int] = {}
    for (_, name, *_), place in next(iter(places.values())).items():
        found.setdefault(name, place)
    return found
