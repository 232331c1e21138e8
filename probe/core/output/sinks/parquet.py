"""Tables for engines that read columns: one Parquet file a signal and range of steps, closed as it is written."""

from __future__ import annotations

from contextlib import closing
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from probe.core.errors import missing
from probe.core.histogram import HISTOGRAM, text_of
from probe.core.messages import plural
from probe.core.output.sinks.context import SinkContext
from probe.core.records import Batch, Snapshot
from probe.core.storage.files import moved
from probe.core.storage.layout import (
    CALL,
    INTEGERS,
    PARQUET,
    STEP,
    candidates,
    cells_of,
    columns_of,
    histograms_of,
    ops_of,
    span_of,
)
from probe.core.storage.sql import literal, quoted

MOST_ROWS = 1 << 20
"""Rows of a signal that are kept; with more, they are written before their range of steps is over."""
MEMORY_MIB = 256
"""Memory limit of the writer."""
FILES_A_CONNECTION = 100
"""Files a connection: DuckDB (seen with 2.0) keeps a kilobyte of every statement until its connection is closed."""


class _Pending(NamedTuple):
    """Batches of one signal and range of steps that have the same columns."""

    signal: str
    first: int
    last: int
    """Last step of the range; some steps of the range may be missing."""
    columns: tuple[str, ...]
    batches: list[tuple[Batch, tuple[str, ...]]]

    @property
    def rows(self) -> int:
        return sum(len(batch) for batch, _ in self.batches)


class ParquetSink:
    """Writer of ``{signal}_{first}-{last}.parquet``, each when the last step of its range has come, or the next range
    begins, or the run ends; a run that is killed loses the steps since then.

    Columns are those of the CSV files, with ``call`` in every file, and values are not rounded.

    Raises:
        ImportError: if duckdb is missing.
    """

    def __init__(self, context: SinkContext) -> None:
        try:
            import duckdb
        except ImportError as absent:
            raise ImportError(missing('format "parquet"', "duckdb", "analysis")) from absent
        self._connect = duckdb.connect
        self._connection: Any = None
        self._files = 0
        """Number of files that the connection has written."""
        self._directory, self._steps_per_file = context.directory, context.steps_per_file
        self._filling: dict[str, _Pending] = {}
        self._complete: list[_Pending] = []
        self._begun: dict[str, int] = {}
        """End of the range of each signal's last file."""

    def open(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        self._reconnect()

    def _reconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = self._connect(config={"threads": 1, "memory_limit": f"{MEMORY_MIB}MiB"})
        self._files = 0

    def write(self, snapshot: Snapshot) -> None:
        """Keep every batch, and write the files that are complete.

        Raises:
            OSError: the first failure. The file is tried again with the next step; if too many rows wait, it is lost.
        """
        for signal, filling in list(self._filling.items()):
            if snapshot.step > filling.last:
                self._finish(signal)
        for batch in snapshot.batches:
            if len(batch):
                histograms = histograms_of(batch, snapshot.ops) is not None
                self._keep(batch, ops_of(batch, snapshot.ops), histograms)
        self._flush(MOST_ROWS)

    def close(self) -> None:
        """Write the files that are left.

        Raises:
            OSError: if that fails; the file is lost.
        """
        for signal in list(self._filling):
            self._finish(signal)
        try:
            self._flush(0)
        finally:
            if self._connection is not None:
                self._connection.close()

    def _keep(self, batch: Batch, ops: tuple[str, ...], histograms: bool) -> None:
        signal, columns = batch.signal, (*columns_of(batch, ops, histograms), CALL)
        first, last = span_of(batch.step, self._steps_per_file)
        if signal in self._filling and self._filling[signal].columns != columns:
            self._finish(signal)
        if signal not in self._filling:
            first = batch.step if self._begun.get(signal) == last else first
            self._filling[signal] = _Pending(signal, first, last, columns, [])
            self._begun[signal] = last
        self._filling[signal].batches.append((batch, ops))
        if batch.step == last:
            self._finish(signal)
        elif self._filling[signal].rows >= MOST_ROWS:
            self._filling[signal] = self._filling[signal]._replace(last=batch.step)
            self._finish(signal)

    def _finish(self, signal: str) -> None:
        self._complete.append(self._filling.pop(signal))

    def _flush(self, most_rows: int) -> None:
        """Write the files that are complete; of those that fail, the latest ``most_rows`` rows are kept for a retry."""
        failures: list[Exception] = []
        failed: list[_Pending] = []
        for complete in self._complete:
            try:
                self._write(complete)
            except Exception as error:  # noqa: BLE001 - the other signals' files must be written all the same
                failures.append(error)
                failed.append(complete)
        lost = []
        while sum(pending.rows for pending in failed) > most_rows:
            lost.append(failed.pop(0))
        self._complete = failed
        if lost:
            rows = ", ".join(f"{pending.rows} {plural(pending.rows, 'row')} of {pending.signal}" for pending in lost)
            raise OSError(f"{self._directory}: {rows} lost: {failures[0]}") from failures[0]
        if failures:
            raise failures[0]

    def _write(self, pending: _Pending) -> None:
        names = candidates(pending.signal, pending.first, pending.last, pending.batches[0][0].step, PARQUET)
        # a file is never written twice
        path = next(path for name in names if not (path := self._directory / str(name)).exists())
        path.parent.mkdir(parents=True, exist_ok=True)
        table = {column: np.concatenate(parts) for column, parts in _cells(pending).items()}
        if self._files >= FILES_A_CONNECTION:
            self._reconnect()
        self._files += 1
        with moved(path, durable=False) as hidden, closing(self._connection.cursor()) as cursor:
            cursor.register("rows", table)
            # DuckDB reads NaN in arrays as a missing value; here no value is missing.
            columns = ", ".join(_chosen(column, cells) for column, cells in table.items())
            cursor.execute(f"COPY (SELECT {columns} FROM rows) TO {literal(str(hidden))} (FORMAT parquet)")  # noqa: S608 - our path


def _cells(pending: _Pending) -> dict[str, list[npt.NDArray[Any]]]:
    """Return the cells of each column, batch by batch. Cells that stay the same from step to step are made once."""
    cells: dict[str, list[npt.NDArray[Any]]] = {column: [] for column in pending.columns}
    form: object = None
    same: dict[str, npt.NDArray[Any]] = {}
    for batch, ops in pending.batches:
        if form != (batch.keys, batch.shapes, batch.dtypes, batch.coverage):
            form = (batch.keys, batch.shapes, batch.dtypes, batch.coverage)
            same = {
                column: np.array(values, dtype=np.int32 if column in INTEGERS else object)
                for column, values in cells_of(batch).items()
            }
        columns = same | {op: np.asarray(batch.op(op), dtype=np.float64) for op in ops}
        if (histograms := histograms_of(batch, cells)) is not None:
            columns[HISTOGRAM] = np.array([*map(text_of, histograms)], dtype=object)
        columns[STEP] = np.full(len(batch), batch.step, dtype=np.int64)
        for column, parts in cells.items():
            parts.append(columns[column])
    return cells


def _chosen(column: str, cells: npt.NDArray[Any]) -> str:
    name = quoted(column)
    return f"coalesce({name}, 'nan'::DOUBLE) AS {name}" if cells.dtype == np.float64 else name
