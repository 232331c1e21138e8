"""Curves of a rank and kind for TensorBoard, encoded by whole steps: an event is one template with its numbers filled
in.

The messages are those of TensorFlow's event.proto and summary.proto, in the encoding of Protocol Buffers.
"""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
import numpy.typing as npt

from probe.core.analysis.convert.select import ConversionUnit
from probe.core.storage.chunks import parse, pieces
from probe.core.storage.directories import RankDirectory
from probe.core.storage.event_file import VERSION, file_name, record
from probe.core.storage.location import Place
from probe.core.storage.metric_rows import MetricRows, MetricTarget
from probe.core.storage.problems import Problems
from probe.core.storage.table_files import TableFile, size_and_time


class _Template(NamedTuple):
    """The summary of a step, ready to be filled in."""

    layout: tuple[object, ...]
    """The parts from which the summary follows; while they stay the same, so does the template."""
    summary: npt.NDArray[np.uint8]
    places: npt.NDArray[np.int64]
    """Positions of the four bytes of each number in the summary."""


class CurveFile:
    """One event file, with the first event that TensorBoard looks for.

    Args:
        file: file opened for writing bytes; the caller closes it.
        time: time of the first event, in seconds since the epoch.
    """

    def __init__(self, file: IO[bytes], time: float) -> None:
        self._file = file
        self._template: _Template | None = None
        version = VERSION.encode()
        file.write(record(struct.pack("<Bd", 0x09, time) + b"\x1a" + _varint(len(version)) + version))

    def add(self, step: int, time: float, rows: MetricRows) -> None:
        """Write the numbers of ``rows``, which are of one step; events hold float32, so larger numbers become infinite.

        If a target comes twice, the later row is taken.
        """
        if not rows.values:
            return
        table = np.stack([np.asarray(column) for column in rows.values.values()], axis=1)
        present = np.stack([_there(column) for column in rows.values.values()], axis=1)
        last = _last_of_each(rows.target)
        if last is not None:
            present[~last] = False
        layout = (tuple(rows.targets), rows.target.tobytes(), rows.micro_stepped, tuple(rows.values), present.tobytes())
        if self._template is None or self._template.layout != layout:
            self._template = _template(layout, _tags(rows, present))
        with np.errstate(over="ignore"):
            numbers = table[present].astype("<f4")
        self._template.summary[self._template.places] = numbers.view(np.uint8).reshape(-1, 4)
        summary = self._template.summary.tobytes()
        head = struct.pack("<Bd", 0x09, time) + b"\x10" + _varint(step) + b"\x2a" + _varint(len(summary))
        self._file.write(record(head + summary))


def curve_name(target: MetricTarget, micro_stepped: bool) -> str:
    """Return the tag of a row without its op: ``vp0:fc.input:micro1``."""
    micro = f":micro{target.micro_step}" if micro_stepped else ""
    return f"vp{target.stage}:{target.name}{micro}"


def _there(column: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Return the mask of the values that are not missing."""
    mask = getattr(column, "mask", None)
    return np.ones(len(column), dtype=bool) if mask is None else ~np.broadcast_to(mask, len(column))


def _tags(rows: MetricRows, present: npt.NDArray[np.bool_]) -> list[str]:
    names = [curve_name(target, rows.micro_stepped) for target in rows.targets]
    ops = list(rows.values)
    lines = zip(rows.target.tolist(), present.tolist(), strict=True)
    return [
        f"{names[target]}/{op}" for target, flags in lines for op, is_kept in zip(ops, flags, strict=True) if is_kept
    ]


def _last_of_each(target: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_] | None:
    """Return the mask of the last row of each target; None if no target comes twice."""
    _, places = np.unique(target[::-1], return_index=True)
    if len(places) == len(target):
        return None
    mask = np.zeros(len(target), dtype=bool)
    mask[len(target) - 1 - places] = True
    return mask


def _template(layout: tuple[object, ...], tags: Sequence[str]) -> _Template:
    parts, places, size = [], np.zeros(len(tags), dtype=np.int64), 0
    for number, tag in enumerate(tags):
        text = tag.encode("utf-8", "backslashreplace")
        value = b"\x0a" + _varint(len(text)) + text + b"\x15" + bytes(4)
        parts.append(b"\x0a" + _varint(len(value)) + value)
        size += len(parts[-1])
        places[number] = size - 4
    summary = np.frombuffer(bytearray(b"".join(parts)), dtype=np.uint8)
    return _Template(layout, summary, places[:, None] + np.arange(4))


def _varint(number: int) -> bytes:
    """Encode ``number``, which is not negative, as Protocol Buffers encode whole numbers."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


Steps = npt.NDArray[np.int64]


class CurveOutcome(NamedTuple):
    """The numbers of a conversion."""

    rows: int
    files: int
    problems: Problems


class _Stretch(NamedTuple):
    """Consecutive rows of one step."""

    number: int
    """Number of the stretch; equal for two parts of a stretch that continues in the next piece of a file."""
    step: int
    time: float
    rows: MetricRows


def write_folder(unit: ConversionUnit, folder: Path) -> CurveOutcome:
    """Convert the files of ``unit``, the newest directory first: repeated steps are taken from it."""
    writer = _Folder(folder)
    for directory, files in reversed(_parts(unit)):
        writer.add(directory, files)
    return CurveOutcome(writer.rows, len(unit.files), writer.problems)


def _parts(unit: ConversionUnit) -> list[tuple[RankDirectory, list[TableFile]]]:
    """Return the files of each directory, separate for each format: rows that a run has written in two formats are
    taken from the Parquet files, which have all digits."""
    parts = []
    for directory, pairs in groupby(unit.files, key=lambda pair: pair[0]):
        files = sorted((file for _, file in pairs), key=lambda file: file.format)
        parts += [(directory, list(alike)) for _, alike in groupby(files, key=lambda file: file.format)]
    return parts


class _Folder:
    def __init__(self, folder: Path) -> None:
        self._path = folder
        self._done: Steps = np.array([], dtype=np.int64)
        """Steps that are written, at eight bytes each."""
        self._latest: Place | None = None
        """The directory that was added last."""
        self.rows = 0
        self.problems = Problems()

    def add(self, directory: RankDirectory, files: Sequence[TableFile]) -> None:
        """Write the event file of one directory, under its name only when it is complete."""
        self._path.mkdir(parents=True, exist_ok=True)
        hidden = self._path / f".{os.getpid()}.tmp"
        try:
            steps, rows = self._write(directory, files, hidden)
            if rows:
                hidden.replace(self._path / file_name(directory.began))
        finally:
            hidden.unlink(missing_ok=True)
        again = np.intersect1d(steps, self._done)
        if len(again) and directory.path != self._latest:
            self._record(directory, f"{_listed(again)} come again in a later directory, which is taken")
        self.rows += rows
        self._done, self._latest = np.union1d(self._done, steps), directory.path

    def _write(self, directory: RankDirectory, files: Sequence[TableFile], path: Path) -> tuple[Steps, int]:
        """Write ``files`` to ``path``; return their steps, and the number of rows written."""
        steps, rows = self._write_stretches(directory, files, path, None)
        distinct, last = np.unique(steps[::-1], return_index=True)
        if len(distinct) < len(steps):
            numbers = len(steps) - 1 - last
            _, rows = self._write_stretches(directory, files, path, set(numbers.tolist()))
            again = distinct[np.bincount(np.searchsorted(distinct, steps)) > 1]
            self._record(directory, f"{_listed(again)} come again in the same directory: the later rows are taken")
        return distinct, rows

    def _write_stretches(
        self, directory: RankDirectory, files: Sequence[TableFile], path: Path, numbers: set[int] | None
    ) -> tuple[Steps, int]:
        """Write the stretches of ``numbers`` (None: all); return the steps of all and the number of rows."""
        steps, rows = array("q"), 0
        with path.open("wb") as opened:
            curves = CurveFile(opened, directory.began)
            for stretch in self._stretches(files, directory.rank):
                if stretch.number == len(steps):
                    steps.append(stretch.step)
                if not _holds(self._done, stretch.step) and (numbers is None or stretch.number in numbers):
                    curves.add(stretch.step, stretch.time, stretch.rows)
                    rows += len(stretch.rows.steps)
        return np.array(steps, dtype=np.int64), rows

    def _stretches(self, files: Sequence[TableFile], rank: int) -> Iterator[_Stretch]:
        number, current = -1, None
        for file in files:
            for rows, time in self._read(file, rank):
                edges = [0, *(np.flatnonzero(np.diff(rows.steps)) + 1).tolist(), len(rows.steps)]
                for begin, end in pairwise(edges):
                    step = int(rows.steps[begin])
                    number, current = (number if step == current else number + 1), step
                    yield _Stretch(number, step, time, rows.taken(slice(begin, end)))

    def _read(self, file: TableFile, rank: int) -> Iterator[tuple[MetricRows, float]]:
        """Yield the readable rows of ``file``, with the time at which it was written."""
        try:
            seconds, rest = divmod(size_and_time(file)[1], 10**9)
            for piece in pieces(file, rank):
                parsed = parse(piece)
                for line, text in parsed.troubles:
                    self.problems.add(file.path, text, line)
                if parsed.rows is not None:
                    yield parsed.rows, seconds + 1e-9 * rest
        except (ImportError, OSError, ValueError) as error:
            self.problems.add(file.path, f"{error}: left out")

    def _record(self, directory: RankDirectory, text: str) -> None:
        self.problems.add(directory.path, f"{self._path.name}: {text}", skipped=False)


def _holds(steps: Steps, step: int) -> bool:
    place = int(np.searchsorted(steps, step))
    return place < len(steps) and bool(steps[place] == step)


def _listed(steps: Steps) -> str:
    return f"{len(steps)} steps from {steps[0]} to {steps[-1]}" if len(steps) > 1 else f"step {steps[0]}"
