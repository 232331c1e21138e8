"""What a rank has written, step by step, as rules take it."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from probe.core.moments import OPS, moments_of
from probe.core.naming import signal_of
from probe.core.reading.cells import coverage_of, key_of, shape_of
from probe.core.reading.files import KEY
from probe.core.reading.problems import Problems
from probe.core.reading.rows import ABOUT, Rows, is_number, quoted
from probe.core.records import Batch, Key

AT_ONCE = 20_000
"""Rows of a signal that are held at a time, besides those of one step."""


class Step(NamedTuple):
    """All that one rank has written of one step."""

    step: int
    rank: int
    batches: list[Batch]
    """In the order in which a step takes its course."""
    ops: tuple[str, ...]
    """Those that any of them was written with."""


def steps(
    rows: Rows, rank: int, first: int | None = None, last: int | None = None, signals: Iterable[str] | None = None
) -> Iterator[Step]:
    """The steps of one rank, in order; of ``signals`` or of all.

    What files do not say: ``order`` is the position among the rows of the signal and step, not among all signals'.
    Moments are as good as the digits that were written. A key that comes twice in a step is given once, as it was
    written last.
    """
    wanted = [signal for signal in rows.signals if signals is None or signal in set(signals)]
    readers = [_tables(rows, signal, rank, first, last) for signal in wanted]
    merged = heapq.merge(*readers, key=lambda table: table.step)
    for step, tables in groupby(merged, key=lambda table: table.step):
        held = [_batch(table, rows.problems) for table in tables]
        held.sort(key=lambda pair: (signal_of(pair[0].signal).phase, pair[0].signal))
        ops = dict.fromkeys(op for _, names in held for op in names)
        yield Step(step, rank, [batch for batch, _ in held], tuple(ops))


class _Table(NamedTuple):
    """The rows of one signal at one step, as they were read."""

    signal: str
    step: int
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    micro_stepped: bool
    directory: Path


def _tables(rows: Rows, signal: str, rank: int, first: int | None, last: int | None) -> Iterator[_Table]:
    for n, directory in enumerate(rows.directories):
        if directory.rank != rank:
            continue
        ends = [end for end in (last, None if directory.until is None else directory.until - 1) if end is not None]
        yield from _of_directory(rows, signal, n, first, min(ends, default=None))


def _of_directory(rows: Rows, signal: str, directory: int, first: int | None, last: int | None) -> Iterator[_Table]:
    files = [file for of, file in rows.files[signal] if of == directory]
    for _, alike in groupby(files, key=lambda file: (file.format, file.columns)):
        group = [file for file in alike if last is None or file.first <= last]
        if not group:
            continue
        source = rows.source(group)
        columns = group[0].columns or rows.columns(source)
        chosen = tuple(column for column in columns if column in KEY or column in ABOUT or is_number(column))
        conditions = [f"step >= {first}"] * (first is not None) + [f"step <= {last}"] * (last is not None)
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        query = f"SELECT {', '.join(map(quoted, chosen))} FROM {source}{where}"  # noqa: S608 - no word is a user's
        at = chosen.index("step")
        for step, same in groupby(_fetched(rows, query), key=lambda row: row[at]):
            yield _Table(signal, step, chosen, list(same), "micro_step" in chosen, rows.directories[directory].path)


def _fetched(rows: Rows, query: str) -> Iterator[tuple[Any, ...]]:
    cursor = rows.connection.cursor()
    cursor.execute(query)
    while found := cursor.fetchmany(AT_ONCE):
        yield from found
    cursor.close()


def _batch(table: _Table, problems: Problems) -> tuple[Batch, tuple[str, ...]]:
    """The batch of a table, and the ops that it was written with."""
    cells = dict(zip(table.columns, zip(*table.rows, strict=True), strict=True))
    number = len(table.rows)
    zeros = (0,) * number
    keys = tuple(
        key_of(table.signal, name or "", micro_step or 0, call or 0, stage or 0)
        for name, micro_step, call, stage in zip(
            cells["name"], cells.get("micro_step", zeros), cells.get("call", zeros), cells["vpp_stage"], strict=True
        )
    )
    kept = _last_of_each(keys, table, problems)
    shapes = [shape_of(text) for text in cells.get("shape", ("",) * number)]
    covers = [coverage_of(text) for text in cells.get("coverage", ())]
    ops = tuple(column for column in table.columns if is_number(column))
    values = {op: np.array([math.nan if v is None else v for v in cells[op]], dtype=np.float64)[kept] for op in ops}
    shapes = [shapes[row] for row in kept]
    counts = np.array([math.prod(shape) for shape in shapes], dtype=np.float64)
    derived = {op: value for op, value in values.items() if op in OPS}
    columns = moments_of(derived, counts) | {name: v for name, v in values.items() if name not in OPS}
    batch = Batch(
        signal=table.signal,
        step=table.step,
        keys=tuple(keys[row] for row in kept),
        shapes=tuple(shapes),
        dtypes=tuple(cells["dtype"][row] or "" for row in kept) if "dtype" in cells else ("",) * len(kept),
        order=np.asarray(kept, dtype=np.int64),
        columns=columns,
        micro_stepped=table.micro_stepped,
        coverage=tuple(covers[row] for row in kept) if any(covers) else (),
    )
    return batch, tuple(derived)


def _last_of_each(keys: Sequence[Key], table: _Table, problems: Problems) -> list[int]:
    last = {key: row for row, key in enumerate(keys)}
    if len(last) == len(keys):
        return list(range(len(keys)))
    what = f"step {table.step} has {len(keys) - len(last)} rows twice: the later ones are taken"
    problems.add(table.directory, f"{table.signal}: {what}", skipped=False)
    return sorted(last.values())
