"""Rows of a rank as batches, step by step, for rules."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple, Protocol, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from probe.core.histogram import QUANTILES
from probe.core.language import message
from probe.core.messages import in_number
from probe.core.moments import OPS, moments_of, numels
from probe.core.naming import RUN, signal_of
from probe.core.records import Array, Batch, Coverage, Key
from probe.core.storage.directories import RankDirectory
from probe.core.storage.layout import coverage_of, is_number, key_of, shape_of
from probe.core.storage.location import Place
from probe.core.storage.problems import Problems
from probe.core.storage.table_files import TableFile

T = TypeVar("T")
Mask = npt.NDArray[np.bool_]

DESCRIBING = ("name", "vpp_stage", "micro_step", "call", "shape", "dtype", "coverage")
"""Columns that describe the tensor of a row."""


class Readable(Protocol):
    """A reader for :func:`steps`: :class:`probe.core.storage.duckdb_reader.Rows`, or, without DuckDB,
    :class:`probe.core.storage.csv_reader.PlainRows`."""

    @property
    def directories(self) -> Sequence[RankDirectory]:
        """Directories of the ranks."""

    @property
    def files(self) -> Mapping[str, Sequence[tuple[int, TableFile]]]:
        """Files by signal, each with the index of its directory, in the order of directory and step."""

    @property
    def problems(self) -> Problems:
        """Lines and files that cannot be read."""

    def files_of(self, signal: str, n: int) -> Sequence[TableFile]:
        """Return the files of a signal in the directory of an index, in the order of steps."""

    def read(
        self, files: Sequence[TableFile], first: int | None, last: int | None
    ) -> tuple[tuple[str, ...], Iterator[tuple[Any, ...]]]:
        """Return the columns of ``files``, which are alike, and the rows from step ``first`` to ``last``, in order."""


class StoredStep(NamedTuple):
    """All rows that one rank has written in one step."""

    step: int
    rank: int
    batches: list[Batch]
    """One for each signal, in the order in which a step computes them."""
    ops: tuple[str, ...]
    """Ops that any of the batches was written with."""
    rows: Mapping[str, int]
    """Number of rows by signal, those without any value included."""


def steps(
    rows: Readable, rank: int, first: int | None = None, last: int | None = None, signals: Iterable[str] | None = None
) -> Iterator[StoredStep]:
    """Yield the steps of one rank, in order; of ``signals``, or of all that are about tensors.

    Files do not record call ids: ``order`` is the position among the rows of the signal and step. Moments are as exact
    as the digits that were written. An empty cell is no value: the row is marked in ``Batch.absent``, and a row without
    any value is left out. A key that comes twice in a step is yielded once, as it was written last; a step that comes
    again after others is yielded again, and recorded in the problems.
    """
    names = None if signals is None else frozenset(signals)
    present = [signal for signal in rows.files if (signal != RUN if names is None else signal in names)]
    readers = [_tables(rows, signal, rank, first, last) for signal in present]
    layouts: dict[tuple[str, tuple[str, ...]], _About] = {}
    merged = heapq.merge(*readers, key=lambda table: table.turn)
    for (*_, step), tables in groupby(merged, key=lambda table: table.turn):
        parts: dict[str, list[_Part]] = {}
        for table in tables:
            of_signal = parts.setdefault(table.signal, [])
            before = sum(part.rows for part in of_signal)
            of_signal += [_part(alike, layouts, before, rows.problems) for alike in _alike(table)]
        full = [group for of_signal in parts.values() if (group := [part for part in of_signal if not part.is_void])]
        batches = [group[0].batch if len(group) == 1 else _joined(group, rows.problems) for group in full]
        batches.sort(key=lambda batch: (signal_of(batch.signal).phase, batch.signal))
        ops = dict.fromkeys(op for group in full for part in group for op in part.ops)
        sizes = {signal: sum(len(part.batch) for part in of_signal) for signal, of_signal in parts.items()}
        yield StoredStep(step, rank, batches, tuple(ops), sizes)


class _Table(NamedTuple):
    """The rows of one signal at one step, as they were read."""

    signal: str
    step: int
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    micro_stepped: bool
    directory: Place
    places: Sequence[int] = ()
    """Position of each row in the file, if some are left out."""
    is_void: bool = False
    """True if the rows lack all values."""
    turn: tuple[int, int, int] = (0, 0, 0)
    """Place among the tables of all signals: the highest step so far in its directory, how often a lower one has come
    since, and the step."""


def _alike(table: _Table) -> Iterator[_Table]:
    """Yield the rows that lack the same values as one table, without those columns."""
    cells = dict(zip(table.columns, zip(*table.rows, strict=True), strict=True))
    lacking = [column for column in table.columns if is_number(column) and None in cells[column]]
    if not lacking:
        yield table
        return
    alike: dict[tuple[bool, ...], list[int]] = {}
    for place, values in enumerate(zip(*(cells[column] for column in lacking), strict=True)):
        alike.setdefault(tuple(value is None for value in values), []).append(place)
    for missing, places in alike.items():
        gone = {column for column, is_missing in zip(lacking, missing, strict=True) if is_missing}
        numbers = [n for n, column in enumerate(table.columns) if column not in gone]
        columns = tuple(table.columns[n] for n in numbers)
        part = [tuple(table.rows[place][n] for n in numbers) for place in places]
        is_void = not any(map(is_number, columns))
        yield table._replace(columns=columns, rows=part, places=places, is_void=is_void)


_BY_RANK: WeakKeyDictionary[Readable, dict[int, list[int]]] = WeakKeyDictionary()
"""Indices of the directories of each rank, by reader: all ranks of a run are read one after the other."""


def _directories_of(rows: Readable, rank: int) -> Sequence[int]:
    """Return the indices of the directories of a rank."""
    places = _BY_RANK.get(rows)
    if places is None:
        places = _BY_RANK[rows] = {}
        for n, directory in enumerate(rows.directories):
            places.setdefault(directory.rank, []).append(n)
    return places.get(rank, ())


def _tables(rows: Readable, signal: str, rank: int, first: int | None, last: int | None) -> Iterator[_Table]:
    for n in _directories_of(rows, rank):
        until = rows.directories[n].until
        ends = [end for end in (last, None if until is None else until - 1) if end is not None]
        yield from _of_directory(rows, signal, n, first, min(ends, default=None))


def _of_directory(rows: Readable, signal: str, directory: int, first: int | None, last: int | None) -> Iterator[_Table]:
    files = [file for file in rows.files_of(signal, directory) if last is None or file.first <= last]
    begin = max((file.first for file in files if first is not None and file.first <= first), default=None)
    # No step is in two files; one with other columns may begin within the steps of the one before it.
    files = [file for file in files if begin is None or first is None or file.first >= begin or file.last >= first]
    path, before, highest, returns = rows.directories[directory].path, -1, -1, 0
    for _, alike in groupby(files, key=lambda file: (file.format, file.columns)):
        group = list(alike)
        columns, read = rows.read(group, first, last)
        at = columns.index("step")
        for step, same in groupby(read, key=lambda row: row[at]):
            if step < before:
                trouble = message(
                    "{signal}: step {before} is followed by step {step}: steps that come again are all taken",
                    signal=signal,
                    before=before,
                    step=step,
                )
                rows.problems.add(path, trouble, skipped=False)
                returns += 1
            if step > highest:
                highest, returns = step, 0
            before, turn = step, (highest, returns, step)
            yield _Table(signal, step, columns, list(same), "micro_step" in columns, path, turn=turn)


class _About(NamedTuple):
    """All of a batch but its numbers; mostly the same from step to step."""

    cells: tuple[tuple[Any, ...] | None, ...]
    """The cells from which the other fields follow."""
    keys: tuple[Key, ...]
    kept: list[int]
    """The rows that are kept; the last one for a key that comes twice."""
    shapes: tuple[tuple[int, ...], ...]
    counts: Array
    """Numbers of elements."""
    dtypes: tuple[str, ...]
    coverage: tuple[Coverage | None, ...]


class _Part(NamedTuple):
    """Rows of one signal and step that lack the same values."""

    batch: Batch
    ops: tuple[str, ...]
    """Ops that they were written with."""
    directory: Place
    is_void: bool
    """True if they lack all values."""
    rows: int
    """Number of rows in the file, with those of which a later one is taken."""


def _part(table: _Table, layouts: dict[tuple[str, tuple[str, ...]], _About], before: int, problems: Problems) -> _Part:
    """Return the rows of a table without empty cells as a batch.

    Args:
        before: number of rows of the signal and step before those of the table's file.
    """
    cells = dict(zip(table.columns, zip(*table.rows, strict=True), strict=True))
    layout = layouts.get((table.signal, table.columns))
    described = tuple(cells.get(column) for column in DESCRIBING)
    if layout is None or layout.cells != described:
        layout = layouts[table.signal, table.columns] = _about(table, described, problems)
    record_twice(table.signal, table.step, len(table.rows) - len(layout.kept), table.directory, problems)
    values = {op: np.array(cells[op], dtype=np.float64)[layout.kept] for op in table.columns if is_number(op)}
    derived = {op: value for op, value in values.items() if op in OPS}
    more = {name: v for name, v in values.items() if name not in OPS or name in QUANTILES}
    columns = moments_of(derived, layout.counts) | more
    batch = Batch(
        signal=table.signal,
        step=table.step,
        keys=layout.keys,
        shapes=layout.shapes,
        dtypes=layout.dtypes,
        order=np.asarray(table.places or range(len(table.rows)), dtype=np.int64)[layout.kept] + before,
        columns=columns,
        micro_stepped=table.micro_stepped,
        coverage=layout.coverage,
    )
    return _Part(batch, tuple(derived), table.directory, table.is_void, len(table.rows))


def record_twice(signal: str, step: int, twice: int, directory: Place, problems: Problems) -> None:
    if twice:
        singular = "{signal}: step {step} has {number} row twice: the later one is taken"
        plural = "{signal}: step {step} has {number} rows twice: the later ones are taken"
        problems.add(directory, in_number(twice, singular, plural, signal=signal, step=step), skipped=False)


def _joined(parts: Sequence[_Part], problems: Problems) -> Batch:
    """Return the rows of all parts as one batch, in the order in which they were written; columns that a part lacks are
    absent in its rows."""
    batches = [part.batch for part in parts]
    keys = [key for batch in batches for key in batch.keys]
    order = np.concatenate([batch.order for batch in batches])
    last = {keys[row]: row for row in np.argsort(order).tolist()}
    at = np.array(sorted(last.values(), key=order.__getitem__))
    first = batches[0]
    record_twice(first.signal, first.step, len(keys) - len(at), parts[-1].directory, problems)
    columns, absent = _columns(batches)
    coverage = tuple(c for batch in batches for c in batch.coverage or (None,) * len(batch))
    return Batch(
        signal=first.signal,
        step=first.step,
        keys=tuple(keys[row] for row in at),
        shapes=_taken([batch.shapes for batch in batches], at),
        dtypes=_taken([batch.dtypes for batch in batches], at),
        order=order[at],
        columns={name: column[at] for name, column in columns.items()},
        micro_stepped=any(batch.micro_stepped for batch in batches),
        coverage=tuple(coverage[row] for row in at) if any(coverage) else (),
        absent={name: rows[at] for name, rows in absent.items()},
    )


def _taken(cells: Iterable[Sequence[T]], at: Iterable[int]) -> tuple[T, ...]:
    """Return some of all cells, by their places."""
    whole = [cell for column in cells for cell in column]
    return tuple(whole[row] for row in at)


def _columns(batches: Sequence[Batch]) -> tuple[dict[str, Array], dict[str, Mask]]:
    """Return the columns of all batches, NaN where one lacks a column, and the rows that lack it."""
    sizes = [len(batch) for batch in batches]
    columns, absent = dict[str, Array](), dict[str, Mask]()
    for name in dict.fromkeys(name for batch in batches for name in batch.columns):
        nothing = (np.full(size, np.nan) for size in sizes)
        columns[name] = np.concatenate(
            [batch.columns.get(name, empty) for batch, empty in zip(batches, nothing, strict=True)]
        )
        lacking = [name not in batch.columns for batch in batches]
        if any(lacking):
            absent[name] = np.repeat(lacking, sizes)
    return columns, absent


def _about(table: _Table, cells: tuple[tuple[Any, ...] | None, ...], problems: Problems) -> _About:
    names, stages, micro_steps, calls, shapes, dtypes, covers = cells
    assert names is not None
    number = len(names)
    zeros = (0,) * number
    keys = [
        key_of(table.signal, name or "", micro_step or 0, call or 0, stage or 0)
        for name, stage, micro_step, call in zip(
            names, stages or zeros, micro_steps or zeros, calls or zeros, strict=True
        )
    ]
    last_rows = sorted({key: row for row, key in enumerate(keys)}.values())

    def parsed(read: Callable[[str | None], Any], row: int, text: str | None) -> Any:
        try:
            return read(text)
        except ValueError:
            trouble = message(
                "{signal}: step {step}, {name}: {text!r} cannot be read: taken for nothing",
                signal=table.signal,
                step=table.step,
                name=names[row],
                text=text,
            )
            problems.add(table.directory, trouble)
            return read(None)

    sizes = tuple(parsed(shape_of, row, shapes[row]) if shapes else () for row in last_rows)
    coverage = tuple(parsed(coverage_of, row, covers[row]) for row in last_rows) if covers else ()
    return _About(
        cells=cells,
        keys=tuple(keys[row] for row in last_rows),
        kept=last_rows,
        shapes=sizes,
        counts=numels(sizes),
        dtypes=tuple(dtypes[row] or "" if dtypes else "" for row in last_rows),
        coverage=coverage if any(coverage) else (),
    )
