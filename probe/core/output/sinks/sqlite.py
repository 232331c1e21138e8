"""A database a rank, written while training runs, in the layout of `probe csv2db`."""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from probe.core.messages import encodable
from probe.core.output.sinks.context import SinkContext
from probe.core.records import Batch, Snapshot
from probe.core.storage.layout import CALL, FORM, MICRO_STEP, NAME, STAGE, cells_of, ops_of
from probe.core.storage.metric_rows import Indices, MetricRows, MetricTarget, TensorForm, numbered
from probe.core.storage.metrics_db import MetricsDatabase
from probe.core.storage.metrics_schema import FILE_NAME, RUN_FILE_NAME

LOCKED_SECONDS = 0.05
"""Time limit of a step's wait for a locked database; then its rows are deferred to the next step."""
CLOSING_SECONDS = 10.0
"""Time limit of the wait of the last steps."""
MOST_WAITING = 100
"""Steps that are deferred; if there are more, the oldest is lost."""
ROWS_A_TABLE = 200_000
"""Approximate limit of the rows of a table: its index is then made in 0.2 s."""
PARTITIONS = (50_000, 20_000, 10_000, 5_000, 2_000, 1_000, 500)
"""Possible numbers of steps in one table. SQLite keeps the description of every table in memory, 3 KB each, so a long
run of a small model has few large tables."""
CACHE_KIB = 2 << 10
"""Page cache of SQLite in KiB: rows are appended, and full pages are not read again."""


class _Layout(NamedTuple):
    """All of a batch but its numbers."""

    about: tuple[object, ...]
    targets: list[MetricTarget]
    target: Indices
    forms: list[TensorForm]
    form: Indices


class SqliteSink:
    """Writer of ``monitor_metrics.db``, a transaction a step.

    Readers do not delay it: the journal is a write-ahead log if the file system allows it. If the database is locked, a
    step is written with a later one.
    """

    def __init__(self, context: SinkContext) -> None:
        self._path = context.directory / (RUN_FILE_NAME if context.run_numbers else FILE_NAME)
        self._rank = context.rank
        self._database: MetricsDatabase | None = None
        self._layouts: dict[str, _Layout] = {}
        self._waiting: list[Snapshot] = []
        self._partition = 0
        self._begun: MetricsDatabase | None = None
        """The database whose partition is settled."""
        self._full: list[str] = []
        """Tables that get no more rows and still lack an index; one is indexed after each step."""

    def open(self) -> None:
        """Make the database.

        Raises:
            OSError: if that fails.
        """
        try:
            self._opened()
        except sqlite3.Error as error:
            problem = f"{self._path}: expected a database that can be written, got: {error}"
            raise OSError(f"{problem}; make room there, or set MONITOR_OUTPUT_DIR to another directory") from error

    def write(self, snapshot: Snapshot) -> None:
        """Write ``snapshot`` and the waiting ones.

        Raises:
            OSError: if a step had to be given up, because too many wait, or because the database cannot be written for
                another reason than a lock.
        """
        self._waiting.append(snapshot)
        try:
            self._write()
        except sqlite3.Error as error:
            if not _locked(error):
                steps = ", ".join(str(waiting.step) for waiting in self._waiting)
                self._start_anew()
                raise OSError(f"{self._path}: what was measured at step {steps} is lost: {error}") from error
            if len(self._waiting) > MOST_WAITING:
                lost = self._waiting.pop(0)
                raise OSError(f"{self._path}: locked for {MOST_WAITING} steps, step {lost.step} is lost") from error
        except BaseException:
            self._start_anew()
            raise

    def close(self) -> None:
        try:
            if self._waiting:
                self._opened().connection.execute(f"PRAGMA busy_timeout={int(CLOSING_SECONDS * 1000)}")
                self._write()
            if self._database is not None:
                self._database.index()
        finally:
            if self._database is not None:
                self._database.close()

    def _opened(self) -> MetricsDatabase:
        if self._database is not None and self._path.exists():
            return self._database
        self._disconnect()  # a file that was removed is made again
        self._database = MetricsDatabase(self._path, None, LOCKED_SECONDS, CACHE_KIB)
        return self._database

    def _write(self) -> None:
        database = self._opened()
        self._index(database)
        with database.transaction():
            if self._begun is not database:
                database.repartition(_partition(self._waiting[0]))
            for snapshot in self._waiting:
                for batch in snapshot.batches:
                    if len(batch):
                        database.add(self._rows(batch, ops_of(batch, snapshot.ops)))
        self._begun = database
        self._waiting.clear()

    def _index(self, database: MetricsDatabase) -> None:
        """Index one full table: before the first row of a new partition, all tables are full."""
        partition = self._waiting[0].step // database.step_partition
        if partition != self._partition:
            self._partition, self._full = partition, database.unindexed()
        if self._full:
            database.index([self._full[-1]])
            self._full.pop()

    def _rows(self, batch: Batch, ops: tuple[str, ...]) -> MetricRows:
        shape = (batch.keys, batch.shapes, batch.dtypes, batch.coverage)
        layout = self._layouts.get(batch.signal)
        if layout is None or layout.about != shape:
            layout = self._layouts[batch.signal] = _lay_out(batch, shape)
        steps = np.full(len(batch), batch.step)
        values = {op: batch.op(op) for op in ops}
        signal = encodable(batch.signal)
        return MetricRows(signal, self._rank, steps, *layout[1:], values, batch.micro_stepped)

    def _start_anew(self) -> None:
        self._waiting.clear()
        self._disconnect()

    def _disconnect(self) -> None:
        if self._database is not None:
            with suppress(sqlite3.Error):
                self._database.connection.close()
            self._database, self._begun, self._full = None, None, []


def _partition(snapshot: Snapshot) -> int:
    """Return the number of steps in one table, for steps like ``snapshot``."""
    rows = max(map(len, snapshot.batches), default=0)
    return next((steps for steps in PARTITIONS if steps * rows <= ROWS_A_TABLE), PARTITIONS[-1])


def _lay_out(batch: Batch, shape: tuple[object, ...]) -> _Layout:
    cells = cells_of(batch)
    targets, target = numbered(map(MetricTarget, *(cells[column] for column in (NAME, STAGE, MICRO_STEP, CALL))))
    forms, form = numbered(map(TensorForm, *(cells[column] for column in FORM)))
    return _Layout(shape, targets, target, forms, form)


def _locked(error: sqlite3.Error) -> bool:
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:  # before Python 3.11 only the text shows it
        return str(error).startswith("database") and str(error).endswith("locked")
    return code & 0xFF in (5, 6)  # SQLITE_BUSY, SQLITE_LOCKED and their extended codes
