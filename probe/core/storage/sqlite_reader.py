"""Databases of ranks (``"format": "sqlite"``), copied to Parquet files for DuckDB.

DuckDB reads SQLite only with an extension that it would download, so Python's ``sqlite3`` reads the rows.
"""

from __future__ import annotations

import math
import shutil
import sqlite3
import tempfile
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from probe.core.language import message
from probe.core.messages import counted
from probe.core.storage.files import check_permitted
from probe.core.storage.layout import KEY, TAKEN, TEXT, whole
from probe.core.storage.location import Location, Place
from probe.core.storage.metrics_schema import FILE_NAMES, FIXED, SCHEMA, row_table, row_tables
from probe.core.storage.problems import Problems
from probe.core.storage.sql import quoted
from probe.core.storage.table_files import TableFile

FORMAT = "sqlite"
"""Format of a :class:`TableFile` whose ``path`` is a copy of rows of a database."""
LOCKED_SECONDS = 2.0
"""Time limit of the wait for a database that another process has locked."""
PIECE = 100_000
"""Rows of one copy, without those of its last step."""
UNREADABLE = (sqlite3.Error, UnicodeDecodeError)
"""Exceptions of ``sqlite3`` for a damaged database; the second one if its own message quotes damaged text."""
MICRO_STEPPED = frozenset({"actv", "actv_grad"})
"""Signals whose rows have micro steps, for databases that do not record this."""

_OURS = frozenset({"monitoring_targets", "monitoring_metrics", "tensor_forms", "global_stats"})

AnyPlace = TypeVar("AnyPlace", Path, Location)

Covered = Callable[[str], Sequence[int]]
"""Function that returns the steps of a signal that other files of the directory hold."""


class Column(NamedTuple):
    """The cells of a column."""

    values: npt.NDArray[Any]
    missing: npt.NDArray[np.bool_] | None = None
    """True for each missing value; None if no value is missing."""


Copy = Callable[[Path, dict[str, Column]], None]
"""Function that writes columns, each of the same length, to a file."""


class _Signal(NamedTuple):
    name: str
    number: int
    tables: list[str]
    """Tables in the order of their steps."""
    order: dict[int, int]
    """Position of each target in a step."""
    micro_stepped: bool


def first_step(directory: Place) -> int | None:
    """Return the lowest step in the databases of a rank's directory; None if there is none.

    Raises:
        Exception: one of :data:`UNREADABLE` if a database cannot be read.
    """
    spans = [_span(directory / name) for name in FILE_NAMES]
    return min((span[0] for span in spans if span), default=None)


def _span(path: Place) -> tuple[int, int] | None:
    """Return the first and the last step in a database; None if it has no rows."""
    if not path.is_file():
        return None
    with _on_disk(path) as copy, closing(_connected(copy)) as database:
        stats = dict(database.execute("SELECT stat_name, stat_value FROM global_stats"))
    first, last = stats.get("min_step"), stats.get("max_step")
    return (first, last if isinstance(last, int) else first) if isinstance(first, int) else None


def last_steps(directory: Place) -> dict[Place, float]:
    """Return the databases of a rank's directory that have rows, each with its last step; an infinite one if it cannot
    be read."""
    steps: dict[Place, float] = {}
    for path in (directory / name for name in FILE_NAMES):
        try:
            if path.is_dir():
                steps[path] = math.inf
            elif span := _span(path):
                steps[path] = span[1]
        except (*UNREADABLE, OSError):
            steps[path] = math.inf
    return steps


def may_have_rows(directory: Place) -> bool:
    """Return whether a database of a rank's directory has rows, or cannot be read."""
    return bool(last_steps(directory))


def copied(
    path: Place, rank: int, folder: Path, covered: Covered, copy: Copy, problems: Problems
) -> Iterator[TableFile]:
    """Copy the rows that only the database ``path`` of a rank has; yield the copies by signal and step.

    Rows that cannot be read are left out with the rest of their table, whose steps are in order, and recorded in
    ``problems``.

    Args:
        folder: folder of the copies.
    """
    if not path.exists():
        return
    if not path.is_file():
        problems.add(path, message("expected a metrics database; this is no file: left out"))
        return
    try:
        with _opened(path, folder) as database:
            _check_ours(database)
            reading = _Reading(database, path, rank, problems)
            for signal in reading.signals():
                yield from reading.copied(signal, folder, covered(signal.name), copy)
    except (*UNREADABLE, OSError, ValueError) as error:
        problems.add(path, message("expected a metrics database that can be read; {error}: left out", error=error))


@contextmanager
def _on_disk(path: Place) -> Iterator[Path]:
    """Return ``path``, or a copy of the database and its journals if it is an object, for the time of the block."""
    if not isinstance(path, Location):
        for file in (path, *_journals(path)):
            check_permitted(file)
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="probe-") as folder:
        for part in (path, *_journals(path)):
            with part.open("rb") as source, (Path(folder) / part.name).open("wb") as target:
                shutil.copyfileobj(source, target)
        yield Path(folder) / path.name


def _connected(path: Path, mode: str = "ro") -> sqlite3.Connection:
    database = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}", timeout=LOCKED_SECONDS, isolation_level=None, uri=True
    )
    database.text_factory = lambda text: text.decode("utf-8", "backslashreplace")
    database.execute("PRAGMA trusted_schema=OFF")
    return database


@contextmanager
def _opened(place: Place, folder: Path) -> Iterator[sqlite3.Connection]:
    """Open ``place`` as it is at one moment, while training may continue to write; nothing is written beside it.

    If SQLite would have to write in order to read (a killed run's journal in a folder that is read-only), a copy in
    ``folder`` is opened.

    Raises:
        sqlite3.Error: if it is no database, or locked.
    """
    with _on_disk(place) as path, closing(_connected(path)) as database:
        try:
            database.execute("BEGIN")
            database.execute("SELECT count(*) FROM sqlite_master").fetchone()
            readable = True
        except sqlite3.OperationalError:
            readable = False
            if not _journals(path):
                raise
        if readable:
            yield database
            return
        for part in (path, *_journals(path)):
            shutil.copy2(part, folder / part.name)
    with closing(_connected(folder / place.name, "rw")) as database:
        yield database


def _journals(path: AnyPlace) -> list[AnyPlace]:
    """Return the journals that SQLite has left beside a database."""
    beside = (path.with_name(f"{path.name}{end}") for end in ("-wal", "-journal"))
    return [journal for journal in beside if journal.is_file() and journal.stat().st_size]


def _check_ours(database: sqlite3.Connection) -> None:
    names = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if missing := sorted(_OURS - names):
        raise ValueError(f"expected the tables that probe writes, there is no {', '.join(missing)}")
    stats = dict(database.execute("SELECT stat_name, stat_value FROM global_stats"))
    if stats.get("schema", SCHEMA) != SCHEMA:
        raise ValueError(f"expected schema {SCHEMA}, there is {stats['schema']!r} of another version")


class _Reading:
    """Reader of the rows of one rank in a database."""

    def __init__(self, database: sqlite3.Connection, path: Place, rank: int, problems: Problems) -> None:
        self._database, self._path, self._rank, self._problems = database, path, rank, problems
        self._targets = self._rows_of("monitoring_targets", "target_id, target_name, vpp_stage, micro_step, call")
        self._forms = self._rows_of("tensor_forms", "form_id, shape, dtype, coverage")
        self._copies = 0

    def signals(self) -> list[_Signal]:
        """Return every signal with rows."""
        tables: dict[int, list[tuple[int, str]]] = {}
        for name in row_tables(self._database):
            if table := row_table(name):
                tables.setdefault(table.metric_id, []).append((table.first, name))
        records = self._database.execute("SELECT metric_id, metric_name FROM monitoring_metrics ORDER BY metric_id")
        return [
            self._signal(name, number, [table for _, table in sorted(tables[number])])
            for number, name in records.fetchall()
            if isinstance(name, str) and number in tables
        ]

    def _signal(self, name: str, number: int, tables: list[str]) -> _Signal:
        try:
            query = "SELECT target_id, position, micro_stepped FROM metric_targets WHERE metric_id = ?"
            placed = self._database.execute(query, (number,)).fetchall()
        except sqlite3.OperationalError:  # written by a version without this table
            placed = []
        order = {target: place for target, place, _ in placed}
        several = any(micro_stepped for _, _, micro_stepped in placed)
        return _Signal(name, number, tables, order, several if placed else name in MICRO_STEPPED)

    def _rows_of(self, table: str, columns: str) -> dict[int, tuple[Any, ...]]:
        return {row[0]: row[1:] for row in self._database.execute(f"SELECT {columns} FROM {table}")}  # noqa: S608

    def copied(self, signal: _Signal, folder: Path, covered: Sequence[int], copy: Copy) -> Iterator[TableFile]:
        """Copy a signal's rows of steps that are not ``covered``."""
        steps = sorted(covered)
        for table in signal.tables:
            try:
                ops = self._ops(table)
                for rows in self._pieces(table, ops, steps):
                    cells = self._cells(signal, table, ops, rows)
                    if len(cells["step"].values):
                        path = folder / f"{self._path.stem}_{self._copies}.parquet"  # a rank has two databases
                        self._copies += 1
                        copy(path, cells)
                        first, last = map(int, cells["step"].values[[0, -1]])
                        yield TableFile(path, signal.name, first, last, 0, FORMAT, tuple(cells))
            except (*UNREADABLE, ValueError) as error:
                self._problems.add(
                    self._path, message("{table} cannot be read; {error}: left out", table=table, error=error)
                )

    def _ops(self, table: str) -> list[str]:
        """Return the columns of values, without names that the tables of other files use otherwise."""
        columns = [row[1] for row in self._database.execute(f"PRAGMA table_info({quoted(table)})")]
        missing = [name for name in FIXED if name not in columns]
        if missing:
            raise ValueError(f"expected a column {missing[0]} in {table}")
        ops = [name for name in columns if name not in FIXED]
        reserved = {name for name in ops if name.lower() in {*KEY, *TEXT, *TAKEN}}
        if reserved:
            trouble = message(
                "{table}: expected ops as columns; {names} left out",
                table=table,
                names=", ".join(map(repr, sorted(reserved))),
            )
            self._problems.add(self._path, trouble)
        return [name for name in ops if name not in reserved]

    def _pieces(self, table: str, ops: Sequence[str], covered: Sequence[int]) -> Iterator[list[tuple[Any, ...]]]:
        """Yield rows of whole steps, in order: step, target, form and values. A piece ends at steps of other files, so
        that all files can be read one after the other."""
        columns = ", ".join(("step", "target_id", "form_id", *map(quoted, ops)))
        query = f"SELECT {columns} FROM {table} WHERE rank = ? ORDER BY step"  # noqa: S608 - our own name
        rows: list[tuple[Any, ...]] = []
        cut = place = 0  # where the last step in ``held`` begins, and how many covered steps come before it
        last = None
        try:
            for row in self._fetched(query):
                if row[0] != last:
                    cut, last, before = len(rows), row[0], place
                    place = bisect_left(covered, last)
                    if cut >= PIECE or (rows and place != before):
                        yield rows
                        rows, cut = [], 0
                if place == len(covered) or covered[place] != last:
                    rows.append(row)
        except UNREADABLE as error:
            trouble = message(
                "{table}: its rows cannot be read; {error}: left out"
                if last is None
                else "{table}: its rows from step {last} on cannot be read; {error}: left out",
                table=table,
                last=last,
                error=error,
            )
            self._problems.add(self._path, trouble)
            rows = rows[:cut]
        yield rows

    def _fetched(self, query: str) -> Iterator[tuple[Any, ...]]:
        with closing(self._database.cursor()) as cursor:
            cursor.execute(query, (self._rank,))
            yield from cursor  # row by row: the rows before a damaged page are not lost

    def _cells(self, signal: _Signal, table: str, ops: Sequence[str], rows: list[tuple[Any, ...]]) -> dict[str, Column]:
        """Return columns as in the files of the signal; a step's rows in the order in which they were written."""
        sound = [row for row in rows if self._is_sound(row)]
        if number := len(rows) - len(sound):
            trouble = message(
                "{table}: {rows} with cells that cannot be read: left out", table=table, rows=counted(number, "row")
            )
            self._problems.add(self._path, trouble)
        last = len(signal.order)
        sound.sort(key=lambda row: (row[0], signal.order.get(row[1], last), row[1]))
        targets, forms = [self._targets[row[1]] for row in sound], [self._forms[row[2]] for row in sound]
        micro_step = {"micro_step": _whole([target[2] for target in targets])} if signal.micro_stepped else {}
        return {
            "vpp_stage": _whole([target[1] for target in targets]),
            "name": _texts([target[0] for target in targets]),
            "step": Column(np.array([row[0] for row in sound], dtype=np.int64)),
            **micro_step,
            **{op: _numbers([row[n] for row in sound]) for n, op in enumerate(ops, 3)},
            "shape": _texts([form[0] for form in forms]),
            "dtype": _texts([form[1] for form in forms]),
            "coverage": _texts([form[2] for form in forms]),
            "call": _whole([target[3] for target in targets]),
        }

    def _is_sound(self, row: tuple[Any, ...]) -> bool:
        """Return whether each column can hold its cell, and names are known."""
        step, target, form, *values = row
        fields = self._targets.get(target)
        try:
            return (
                fields is not None
                and form in self._forms
                and isinstance(fields[0], str)
                and all(isinstance(number, int) and whole("call", number) >= 0 for number in fields[1:])
                and isinstance(step, int)
                and whole("step", step) >= 0
                and all(value is None or isinstance(value, int | float) or value == "nan" for value in values)
            )
        except (TypeError, ValueError):
            return False


def _whole(numbers: Sequence[int]) -> Column:
    return Column(np.array(numbers, dtype=np.int32))


def _texts(texts: Sequence[Any]) -> Column:
    cells = np.empty(len(texts), dtype=object)
    cells[:] = [str(text or "") for text in texts]
    return Column(cells)


def _numbers(cells: Sequence[Any]) -> Column:
    """Convert cells of SQLite, which lacks NaN, to a column: the text ``nan`` is NaN, None is a missing value."""
    numbers = [float("nan" if cell is None else cell) for cell in cells]
    return Column(np.array(numbers, dtype=np.float64), np.array([cell is None for cell in cells], dtype=np.bool_))
