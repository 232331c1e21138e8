"""``monitor_metrics.db``: rows of any number of ranks in SQLite, written by `csv2db` and by the sink.

docs/guides/conversions.md describes the tables.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from probe.core.language import invalid
from probe.core.storage.metric_rows import MetricRows, MetricTarget
from probe.core.storage.metrics_schema import (
    FIXED,
    MOST_VIEWED,
    SCHEMA,
    TABLES,
    create_index,
    create_table,
    create_view,
    index_name,
    row_table,
    row_tables,
    table_name,
    view_name,
)
from probe.core.storage.sql import quoted

STEP_PARTITION = 500
"""Steps in one table by default."""
CACHED_STATEMENTS = 64
"""Prepared statements that are kept, a few kilobytes each: every step uses one a signal."""
MOST_TABLES = 100
"""Tables whose columns are cached, the latest ones; the columns of others are looked up again."""
CACHE_KIB = 32 << 10
"""Page cache of SQLite by default, in KiB."""


class _Table(NamedTuple):
    """A table of rows, ready for inserts."""

    insert: str
    """Statement without the values of a row."""
    stats: tuple[str, ...]


class MetricsDatabase:
    """The database. Rows are added inside transactions; one process writes at a time, any number read.

    Args:
        step_partition: steps in one table; None for the number that the database was made with, or the default.
        wait_seconds: time limit of the wait for a locked database.
        cache_kib: page cache of SQLite in KiB.

    Raises:
        ValueError: if ``path`` is something else, or a database made with another ``step_partition``.
        sqlite3.OperationalError: if the file cannot be written.
    """

    def __init__(
        self,
        path: Path,
        step_partition: int | None = STEP_PARTITION,
        wait_seconds: float = 5.0,
        cache_kib: int = CACHE_KIB,
    ) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        # The delivery thread writes; another one opens.
        self.connection = sqlite3.connect(
            path, wait_seconds, isolation_level=None, check_same_thread=False, cached_statements=CACHED_STATEMENTS
        )
        try:
            self._prepare(step_partition, cache_kib)
        except BaseException:
            self.connection.close()
            raise
        self._forget()

    def close(self) -> None:
        """Close the database; if no other process has it open, one file is left, without a journal beside it."""
        try:
            self.connection.execute("PRAGMA journal_mode=DELETE")
        except sqlite3.OperationalError:
            pass  # nothing is lost: a reader has it open, and the journal stays until the last one closes it
        finally:
            self.connection.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Context whose additions are all in the database at its end; on an exception, none of them is."""
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.connection.execute("COMMIT")
        except BaseException:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
            self._forget()
            raise

    @property
    def step_partition(self) -> int:
        """Steps in one table."""
        return self._partition

    def repartition(self, step_partition: int) -> None:
        """Change the number of steps in one table, inside a transaction. No effect if there are rows already."""
        if not row_tables(self.connection):
            statement = "UPDATE global_stats SET stat_value = ? WHERE stat_name = 'step_partition'"
            self.connection.execute(statement, (step_partition,))
            self._partition = step_partition

    def add(self, rows: MetricRows) -> None:
        """Add ``rows``; a row replaces one about the same rank, step and target."""
        if not len(rows.steps):
            return
        metric = int(self._names.ids("monitoring_metrics", [(rows.signal,)])[0])
        partitions = rows.steps // self._partition
        for partition in np.unique(partitions).tolist():
            of_partition = partitions == partition
            self._insert(metric, partition, rows if of_partition.all() else rows.taken(of_partition))
        self._place(metric, rows)
        self._names.widen_range(int(rows.steps.min()), int(rows.steps.max()), rows.rank)

    def remove(self, signal: str, rank: int) -> None:
        """Remove all rows of a signal and rank, and the records of their files."""
        for table in self.tables(signal):
            self.connection.execute(f"DELETE FROM {table} WHERE rank = ?", (rank,))  # noqa: S608 - our own name
        self.connection.execute("DELETE FROM imported_files WHERE metric_name = ? AND rank = ?", (signal, rank))

    def imported(self, signal: str, rank: int) -> dict[str, tuple[int, int]]:
        """Return the size and the modification time (nanoseconds since the epoch) of each file whose rows are here."""
        query = "SELECT file, size, modified_ns FROM imported_files WHERE metric_name = ? AND rank = ?"
        return {file: (size, time) for file, size, time in self.connection.execute(query, (signal, rank))}

    def remember(self, file: str, signal: str, rank: int, size: int, modified_ns: int, rows: int, bad: int) -> None:
        """Record that the rows of ``file`` are here, except ``bad`` rows that cannot be read."""
        record = (file, signal, rank, size, modified_ns, rows, bad)
        self.connection.execute("INSERT OR REPLACE INTO imported_files VALUES (?, ?, ?, ?, ?, ?, ?)", record)

    def tables(self, signal: str) -> list[str]:
        """Return the tables that hold the rows of ``signal``, in the order of their steps."""
        records = self.connection.execute("SELECT metric_id FROM monitoring_metrics WHERE metric_name = ?", (signal,))
        row = records.fetchone()
        if row is None:
            return []
        parsed = {name: table for name in row_tables(self.connection) if (table := row_table(name))}
        names = [name for name, table in parsed.items() if table.metric_id == row[0]]
        return sorted(names, key=lambda name: parsed[name].first)

    def unindexed(self) -> list[str]:
        """Return the tables that have no index yet: it is made when a table is full, because updates of an index would
        write every page of it at every step."""
        indexed = {name for (name,) in self.connection.execute("SELECT name FROM sqlite_master WHERE type = 'index'")}
        return [name for name in row_tables(self.connection) if index_name(name) not in indexed]

    def index(self, tables: Iterable[str] | None = None) -> None:
        """Index ``tables`` (None: all that have no index yet), each in a transaction of its own."""
        for table in self.unindexed() if tables is None else tables:
            self.connection.execute(create_index(table))

    def _prepare(self, step_partition: int | None, cache_kib: int) -> None:
        self._check_ours()
        # On a file system without shared memory SQLite keeps its ordinary journal.
        self.connection.execute("PRAGMA journal_mode=WAL").fetchone()
        self.connection.execute("PRAGMA synchronous=NORMAL")
        self.connection.execute(f"PRAGMA cache_size=-{cache_kib}")
        with self.transaction():
            for statement in filter(str.strip, TABLES.split(";")):
                self.connection.execute(statement)
            self._agree("schema", SCHEMA)
            self._partition = self._agree("step_partition", step_partition, STEP_PARTITION)

    def _check_ours(self) -> None:
        """Check before the first write that probe has made the database: any other stays as it is."""
        query = "SELECT name FROM sqlite_master WHERE type = 'table'"
        try:
            names = {name for (name,) in self.connection.execute(query)}
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError as error:
            raise invalid(
                "{path}: expected a metrics database or no file, got something else", path=self.path
            ) from error
        if names and "imported_files" not in names:
            raise invalid(
                "{path}: expected a database that probe has written, got one without imported_files", path=self.path
            )

    def _agree(self, name: str, value: int | None, default: int = 0) -> int:
        """Return the value in the database, which must be ``value`` unless that is None; in a new database, set it to
        ``value`` or ``default``."""
        begun_with = default if value is None else value
        self.connection.execute("INSERT OR IGNORE INTO global_stats VALUES (?, ?)", (name, begun_with))
        query = "SELECT stat_value FROM global_stats WHERE stat_name = ?"
        (stored,) = self.connection.execute(query, (name,)).fetchone()
        if value is not None and stored != value:
            raise invalid(
                "{path}: expected {name} {value}, got one made with {stored}: write to another folder",
                path=self.path,
                name=name,
                value=value,
                stored=stored,
            )
        return int(stored)

    def _forget(self) -> None:
        """Forget names and tables: their transaction may have been undone."""
        self._names = NameTable(self.connection)
        self._tables: dict[tuple[int, int], _Table] = {}
        self._placed: dict[int, Sequence[MetricTarget]] = {}
        """Targets that were written last, by signal."""

    def _insert(self, metric: int, partition: int, rows: MetricRows) -> None:
        table = self._tables.get((metric, partition))
        if table is None or not set(rows.values) <= set(table.stats):
            while len(self._tables) >= MOST_TABLES:
                del self._tables[next(iter(self._tables))]
            table = self._tables[metric, partition] = self._table(metric, partition, rows)
        stats = list(rows.values)
        names = ", ".join((*FIXED, *map(quoted, stats)))
        statement = f"{table.insert} ({names}) VALUES ({', '.join('?' * (len(FIXED) + len(stats)))})"
        targets = self._names.ids("monitoring_targets", rows.targets)[rows.target].tolist()
        forms = self._names.ids("tensor_forms", rows.forms)[rows.form].tolist()
        columns = (_cells(rows.values[stat]) for stat in stats)
        ranks = [rows.rank] * len(targets)
        self.connection.executemany(statement, zip(ranks, rows.steps.tolist(), targets, forms, *columns, strict=True))

    def _place(self, metric: int, rows: MetricRows) -> None:
        """Record the order of a signal's targets: the order in which they are first written."""
        if self._placed.get(metric) is rows.targets:  # as in the step before
            return
        targets = self._names.ids("monitoring_targets", rows.targets).tolist()
        values = dict(
            self.connection.execute("SELECT target_id, position FROM metric_targets WHERE metric_id = ?", (metric,))
        )
        new = [target for target in targets if target not in values]
        self.connection.executemany(
            "INSERT INTO metric_targets VALUES (?, ?, ?, ?)",
            ((metric, target, place, int(rows.micro_stepped)) for place, target in enumerate(new, len(values))),
        )
        self._placed[metric] = rows.targets

    def _table(self, metric: int, partition: int, rows: MetricRows) -> _Table:
        """Return the table of ``partition``, made or widened so that it holds all stats of ``rows``."""
        if clash := {stat.lower() for stat in rows.values} & set(FIXED):
            raise ValueError(f"expected ops, got columns called {', '.join(sorted(clash))}")
        first = partition * self._partition
        last = first + self._partition - 1
        name = table_name(metric, first, last)
        before = self._held(name)
        self.connection.execute(create_table(name, first, last, tuple(rows.values)))
        stats_of_table = self._held(name)
        lower = {stat.lower() for stat in stats_of_table}
        missing = [stat for stat in rows.values if stat.lower() not in lower]
        for stat in missing:
            self.connection.execute(f"ALTER TABLE {name} ADD COLUMN {quoted(stat)} REAL")
        statement = "INSERT OR IGNORE INTO metric_stats VALUES (?, ?)"
        self.connection.executemany(statement, ((metric, stat) for stat in rows.values))
        if missing or not before:
            self._view(rows.signal)
        return _Table(f"INSERT OR REPLACE INTO {name}", (*stats_of_table, *rows.values))

    def _held(self, table: str) -> tuple[str, ...]:
        """Return the stats that ``table`` has columns for; empty if there is no such table."""
        columns = [column[1] for column in self.connection.execute(f"PRAGMA table_info({table})")]
        return tuple(column for column in columns if column not in FIXED)

    def _view(self, signal: str) -> None:
        """Make the view of ``signal`` anew, now that it has another table or column."""
        tables = [(table, self._held(table)) for table in self.tables(signal)]
        stats = dict.fromkeys(stat for _, columns in tables for stat in columns)
        self.connection.execute(f"DROP VIEW IF EXISTS {quoted(view_name(signal))}")
        if len(tables) <= MOST_VIEWED:
            self.connection.execute(create_view(signal, tables, tuple(stats)))


def _cells(column: npt.NDArray[np.float64]) -> list[Any]:
    """Return the cells for SQLite: NaN, which it would turn into NULL, as the text ``nan``; missing values as NULL."""
    cells: list[Any] = column.tolist()
    for row in np.flatnonzero(np.isnan(np.asarray(column))).tolist():
        if cells[row] is not None:
            cells[row] = "nan"
    return cells


def has_row_tables(path: Path) -> bool:
    """Return whether the database at ``path`` has tables of rows, or cannot be read."""
    try:
        with closing(sqlite3.connect(path)) as connection:
            return bool(row_tables(connection))
    except sqlite3.Error:
        return True


def move_steps(path: Path, rank: int, first: int, aside: Path) -> None:
    """Remove the rows of a rank from step ``first`` on. If there are any, copy the database to ``aside`` first, and
    make its folder.

    Raises:
        sqlite3.Error: if the database cannot be read or written.
        OSError: if the folder cannot be made.
    """
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        tables, again = row_tables(connection), "WHERE rank = ? AND step >= ?"
        queries = [f"SELECT 1 FROM {table} {again} LIMIT 1" for table in tables]  # noqa: S608 - our own names
        if not any(connection.execute(query, (rank, first)).fetchone() for query in queries):
            return
        aside.parent.mkdir(exist_ok=True)
        with closing(sqlite3.connect(aside)) as copy:
            connection.backup(copy)
        connection.execute("BEGIN IMMEDIATE")
        for table in tables:
            connection.execute(f"DELETE FROM {table} {again}", (rank, first))  # noqa: S608 - our own name
        connection.execute("COMMIT")


_COLUMNS = {
    "monitoring_targets": ("target_id", "target_name", "vpp_stage", "micro_step", "call"),
    "tensor_forms": ("form_id", "shape", "dtype", "coverage"),
    "monitoring_metrics": ("metric_id", "metric_name"),
}
_RANGE = {"min_step": "min", "max_step": "max", "max_rank": "max"}


class NameTable:
    """Numbers of names; each is looked up once. After a transaction is undone, the object must be discarded."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._ids: dict[str, dict[Any, int]] = {table: {} for table in _COLUMNS}
        self._range: tuple[int, int, int] | None = None

    def ids(self, table: str, items: Sequence[Any]) -> npt.NDArray[np.int64]:
        """Return the number of each item; new items are numbered on."""
        numbers = self._ids[table]
        for item in items:
            if item not in numbers:
                numbers[item] = self._found(table, item) or self._added(table, item)
        return np.fromiter((numbers[item] for item in items), np.int64, len(items))

    def widen_range(self, first: int, last: int, rank: int) -> None:
        """Keep the smallest and largest step and the largest rank: a program that draws charts reads them first."""
        limits = self._range
        if limits and limits[0] <= first and last <= limits[1] and rank <= limits[2]:
            return
        for (name, function), value in zip(_RANGE.items(), (first, last, rank), strict=True):
            self._connection.execute(
                "INSERT INTO global_stats VALUES (?, ?) ON CONFLICT (stat_name) "  # noqa: S608 - one of our functions
                f"DO UPDATE SET stat_value = {function}(stat_value, excluded.stat_value)",
                (name, value),
            )
        stats = dict(self._connection.execute("SELECT stat_name, stat_value FROM global_stats"))
        self._range = stats["min_step"], stats["max_step"], stats["max_rank"]

    def _found(self, table: str, item: Sequence[Any]) -> int | None:
        number, *columns = _COLUMNS[table]
        where = " AND ".join(f"{column} = ?" for column in columns)
        row = self._connection.execute(f"SELECT {number} FROM {table} WHERE {where}", item).fetchone()  # noqa: S608
        return None if row is None else int(row[0])

    def _added(self, table: str, item: Sequence[Any]) -> int:
        columns = _COLUMNS[table][1:]
        statement = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"  # noqa: S608
        number = self._connection.execute(statement, item).lastrowid
        assert number is not None, "SQLite numbers each row that is inserted"
        return number
