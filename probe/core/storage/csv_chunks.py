"""CSV files, some lines at a time.

They are read without an engine: starting a query for each of the small files that a run leaves (one a signal and step,
unless configured otherwise) would take longer than reading them.
"""

from __future__ import annotations

import csv
import gc
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from probe.core.storage.layout import KEY, TEXT, whole
from probe.core.storage.metric_rows import MetricRows, assembled
from probe.core.storage.problems import cannot_be_read
from probe.core.storage.table_files import TableFile

TOLD = 3
"""Bad lines of a piece that are told one by one."""
BLOCK_BYTES = 1 << 20

Read = tuple[MetricRows | None, int, tuple[tuple[int | None, str], ...]]
"""The rows, the number of lines that were left out, and the first of them: the line, and what is wrong with it."""


def read(file: TableFile, rank: int, begin: int, end: int | None, torn: int) -> Read:
    """The lines that begin from byte ``begin`` to byte ``end - 1``, but for the header.

    Args:
        end: None for the rest of the file.
        torn: bytes at the end of the file that are left out.

    Raises:
        OSError: if the file cannot be read.
    """
    text, start = _text(file.path, begin, end, torn)
    with _collector_paused():
        try:
            table = [row for row in csv.reader(io.StringIO(text, newline="")) if row]
            if set(map(len, table)) <= {len(file.columns)}:
                return _rows(file, rank, table), 0, ()
        except (csv.Error, ValueError):
            pass  # one of the lines is bad: which one, the slower way tells
        return _line_by_line(file, rank, text, start)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Without the search for cycles that a million new cells would set off, in vain, again and again."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


def _text(path: Path, begin: int, end: int | None, torn: int) -> tuple[str, int]:
    """The lines, and the byte at which they begin."""
    with path.open("rb") as file:
        stop = file.seek(0, io.SEEK_END) - torn if end is None else _next_line(file, end - 1)
        start = _next_line(file, max(0, begin - 1))
        file.seek(start)
        return file.read(max(0, stop - start)).decode("utf-8", "backslashreplace"), start


def _next_line(file: io.BufferedReader, position: int) -> int:
    """Where the first line begins that does so after ``position``."""
    file.seek(position)
    file.readline()
    return file.tell()


def _rows(file: TableFile, rank: int, table: Sequence[Sequence[str]]) -> MetricRows | None:
    """The cells of ``table`` as columns.

    Raises:
        ValueError: if a cell is not what its column needs.
    """
    if not table:
        return None
    cells = dict(zip(file.columns, zip(*table, strict=True), strict=True))
    about = {column: cells[column] for column in file.columns if column in (*KEY, *TEXT)}
    return assembled(file.signal, rank, about, {c: _numbers(cells[c]) for c in file.columns if c not in about})


def _numbers(cells: Sequence[str]) -> Any:
    try:
        return np.array(list(map(float, cells)))
    except ValueError:
        there = [bool(cell) for cell in cells]  # else float raises once more: what is there is no number
        return np.ma.array([float(cell or 0) for cell in cells], mask=np.logical_not(there))  # type: ignore[no-untyped-call]


def _line_by_line(file: TableFile, rank: int, text: str, start: int) -> Read:
    good, bad = [], []
    for number, line in enumerate(text.split("\n")):
        if what := _wrong(line, file.columns):
            bad.append((number, what))
        elif line.strip("\r"):
            good.append(next(csv.reader([line])))
    before = 1 + _lines_before(file.path, start) if bad else 0
    told: list[tuple[int | None, str]] = [(before + n, f"{what}: this line is left out") for n, what in bad[:TOLD]]
    if len(bad) > TOLD:
        told.append((None, cannot_be_read(len(bad) - TOLD)))
    return _rows(file, rank, good), len(bad), tuple(told)


def _lines_before(path: Path, position: int) -> int:
    lines = 0
    with path.open("rb") as file:
        while position > 0:
            block = file.read(min(BLOCK_BYTES, position))
            if not block:
                break
            lines += block.count(b"\n")
            position -= len(block)
    return lines


def _wrong(line: str, columns: Sequence[str]) -> str:
    """What is wrong with ``line``; empty if nothing is."""
    if not line.strip("\r"):
        return ""
    try:
        cells = next(csv.reader([line], strict=True))
    except csv.Error as error:
        return f"expected cells with paired quotes; {error}"
    if len(cells) != len(columns):
        return f"expected {len(columns)} cells, got {len(cells)}"
    for column, cell in zip(columns, cells, strict=True):
        if column not in TEXT and not _readable(column, cell):
            return f"expected a number in column {column}, got {cell[:40]!r}"
    return ""


def _readable(column: str, cell: str) -> bool:
    try:
        whole(column, cell) if column in KEY else float(cell or 0)
    except ValueError:
        return False
    return True
