"""Mapped file by which a rank shows its series to the exporter of its node.

The file has a header (JSON, written once), a table of series (JSON, written when the set of them changes) and a row of
values; table and row are :mod:`probe.core.storage.mapped_parts`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from probe.core.output.metrics.catalogue import LAST_STEP, Series
from probe.core.storage.files import FileView
from probe.core.storage.mapped_parts import PART, TRIES, mapped, part, put

MAGIC = b"probe-metrics-1\n"
"""First bytes of a file: its kind and the version of its layout."""
SUFFIX = ".metrics"
PROGRESS_SUFFIX = ".progress"
"""Ending of the rank's other file, see :mod:`probe.core.run_state.progress_file`."""
HEADER_BYTES = 4096
MOST_SERIES = 10_000
BYTES_A_SERIES = 512
"""Space for the name and labels of one series, on average."""
KEPT_SECONDS = 86_400.0
"""Age of a file from which on it is removed, if its process is gone."""

Values = npt.NDArray[np.float64]


class MetricsHeader(NamedTuple):
    """Facts about a rank that do not change."""

    pid: int
    started: int
    """Time of the start of the process, in clock ticks since boot: a later process of the same id has another."""
    job: str
    rank: int
    ranks: int
    """Number of ranks of the job."""
    host: str
    gpu_uuids: tuple[str, ...] = ()
    """Devices that the process uses, as the driver names them; empty if unknown."""
    series: int = 200
    """Most series of the file."""


class MetricsFile:
    """Writer of the series of this rank.

    Args:
        path: of the file, which is replaced.

    Raises:
        OSError: if it cannot be made.
    """

    def __init__(self, path: Path, header: MetricsHeader) -> None:
        self.path, self._most, self._alone = path, min(max(header.series, 1), MOST_SERIES), header.ranks == 1
        text = MAGIC + json.dumps(header._asdict()).encode()
        if len(text) > HEADER_BYTES:
            raise ValueError(f"{path}: expected facts of at most {HEADER_BYTES} bytes, got {len(text)}")
        self._table_at, self._row_at, size = _places(self._most)
        path.unlink(missing_ok=True)
        self._map = mapped(path, size, text)
        self._inode = path.stat().st_ino
        self._generation = 0
        self._asked: tuple[Series, ...] = ()
        self._series: tuple[Series, ...] = ()

    def store(self, series: Sequence[Series], values: Values) -> int:
        """Replace the series and their values; return the number of those for which there was no room."""
        head = tuple(series[: self._most])
        if head != self._asked:
            self._asked = head
            self._declare(head)
        row = np.ascontiguousarray(values[: len(self._series)], np.float64).tobytes()
        put(self._map, self._row_at, self._generation, row)
        return len(series) - len(self._series)

    def _declare(self, series: tuple[Series, ...]) -> None:
        room = self._row_at - self._table_at - PART.size
        table = _table(series)
        while len(table) > room:  # names that are far longer than the usual ones
            series = series[: len(series) * room // len(table) - 1]
            table = _table(series)
        self._generation += 1
        self._series = series
        put(self._map, self._table_at, self._generation, table)

    def close(self) -> None:
        """Remove the file, unless a later monitor of this process has replaced it."""
        with suppress(OSError):
            if self.path.stat().st_ino == self._inode:
                self.path.unlink()
            if self._alone:  # no other rank can be about to use the folder
                self.path.parent.rmdir()
        self._map.close()


class MetricsReader:
    """Reader of the file of one rank.

    Raises:
        OSError: if the file cannot be opened.
        ValueError: if it has another layout.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = FileView(path)
        self.inode = self._file.inode
        if self._file.size < HEADER_BYTES or self._file.read(0, len(MAGIC)) != MAGIC:
            self.close()
            raise ValueError(f"{path}: expected a file of metrics, version {MAGIC.decode().strip()}")
        self.header = self._header()
        self._table_at, self._row_at, expected = _places(min(max(self.header.series, 1), MOST_SERIES))
        if self._file.size != expected:
            self.close()
            raise ValueError(f"{path}: expected {expected} bytes, got {self._file.size}")
        self._generation = 0
        self._series: tuple[Series, ...] = ()

    def _header(self) -> MetricsHeader:
        try:
            fields: dict[str, Any] = json.loads(self._file.read(len(MAGIC), HEADER_BYTES - len(MAGIC)).rstrip(b"\0"))
            header = MetricsHeader(**fields)
            return header._replace(gpu_uuids=tuple(map(str, header.gpu_uuids)), series=int(header.series))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{self.path}: the header cannot be read: {error}") from None

    def read(self) -> tuple[tuple[Series, ...], Values]:
        """Return the series and their values; none if there are none yet, or if a process ended while it wrote."""
        for _ in range(TRIES):
            row = part(self._file, self._row_at)
            if row is None:
                continue
            generation, data = row
            if generation != self._generation:
                table = part(self._file, self._table_at)
                if table is None or table[0] != generation:
                    continue
                self._generation, self._series = generation, _series(table[1])
            values = np.frombuffer(data, np.float64)
            if len(values) == len(self._series):
                return self._series, values
        return (), np.empty(0)

    def close(self) -> None:
        self._file.close()


def sweep(folder: Path) -> None:
    """Remove the files of ranks in folders beside ``folder`` whose processes have been gone for a day."""
    for path in folder.parent.glob(f"*/rank*{SUFFIX}"):
        with suppress(OSError, ValueError):
            if time.time() - path.stat().st_mtime < KEPT_SECONDS:
                continue
            reader = MetricsReader(path)
            pid, (series, values) = reader.header.pid, reader.read()
            reader.close()
            steps = [value for item, value in zip(series, values, strict=True) if item == Series(LAST_STEP.name)]
            # A process of another container cannot be seen here, but its steps can.
            if not Path(f"/proc/{pid}").exists() and time.time() - max(steps, default=0.0) > KEPT_SECONDS:
                path.unlink()
                path.with_suffix(PROGRESS_SUFFIX).unlink(missing_ok=True)
                path.parent.rmdir()


def _places(series: int) -> tuple[int, int, int]:
    """Return where the table begins, where the row begins, and the size of a file of so many series."""
    row = HEADER_BYTES + PART.size + series * BYTES_A_SERIES
    return HEADER_BYTES, row, row + PART.size + series * 8


def _table(series: Sequence[Series]) -> bytes:
    return json.dumps([[item.metric, *item.labels] for item in series], separators=(",", ":")).encode()


def _series(table: bytes) -> tuple[Series, ...]:
    return tuple(Series(metric, tuple(labels)) for metric, *labels in json.loads(table))
