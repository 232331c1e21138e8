"""Tables for engines that read columns: one Parquet file a signal and range of steps, closed as it is written."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from probe.core.naming import cell_name
from probe.core.records import Batch, Snapshot
from probe.core.sinks.columns import ops_of
from probe.core.sinks.context import SinkContext
from probe.core.sinks.tables import coverages

MOST_ROWS = 1 << 20
"""Rows of a signal that are kept; then they are written before their range of steps is over."""
MEMORY_MIB = 256
"""What the writer may take for itself."""


class _Pending(NamedTuple):
    """Batches of one signal, one range of steps and the same columns."""

    signal: str
    first: int
    last: int
    """Of the range, not of what is in it."""
    columns: tuple[str, ...]
    batches: deque[tuple[Batch, tuple[str, ...]]]

    @property
    def rows(self) -> int:
        return sum(len(batch) for batch, _ in self.batches)


class ParquetSink:
    """Writes ``{signal}_{first}-{last}.parquet`` when the last step of the range has come, or the next range begins, or
    the run ends: a run that is killed loses the steps since then.

    Columns are those of the CSV files, with ``call`` in every file, and values are not rounded.

    Raises:
        ImportError: if duckdb is missing.
    """

    def __init__(self, context: SinkContext) -> None:
        try:
            import duckdb
        except ImportError as missing:
            raise ImportError('format "parquet" needs duckdb: pip install "probe-monitor[analysis]"') from missing
        self._connect = duckdb.connect
        self._connection: Any = None
        self._directory, self._steps_per_file = context.directory, context.steps_per_file
        self._pending: dict[str, _Pending] = {}

    def open(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        self._connection = self._connect(config={"threads": 1, "memory_limit": f"{MEMORY_MIB}MiB"})

    def write(self, snapshot: Snapshot) -> None:
        """Keeps every batch, and writes those whose range is complete; the first failure is raised at the end."""
        batches = {batch.signal: batch for batch in snapshot.batches if len(batch)}
        passed = [signal for signal, kept in self._pending.items() if snapshot.step > kept.last]
        failures = self._flush(signal for signal in passed if signal not in batches)
        for signal, batch in batches.items():
            failures += self._keep(signal, batch, ops_of(batch, snapshot.ops))
        if failures:
            raise failures[0]

    def close(self) -> None:
        """Writes what is left."""
        failures = self._flush(list(self._pending))
        if self._connection is not None:
            self._connection.close()
        if failures:
            raise failures[0]

    def _keep(self, signal: str, batch: Batch, ops: tuple[str, ...]) -> list[Exception]:
        first = batch.step // self._steps_per_file * self._steps_per_file
        last, columns = first + self._steps_per_file - 1, _columns(batch, ops)
        failures: list[Exception] = []
        kept = self._pending.get(signal)
        if kept and (kept.first, kept.columns) != (first, columns):
            failures += self._flush([signal])
            first = first if kept.first != first else batch.step
        if signal not in self._pending:
            self._pending[signal] = _Pending(signal, first, last, columns, deque())
        self._pending[signal].batches.append((batch, ops))
        if batch.step == last or self._pending[signal].rows >= MOST_ROWS:
            failures += self._flush([signal])
        return failures
