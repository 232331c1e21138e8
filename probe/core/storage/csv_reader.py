"""CSV files read by Python alone, some lines at a time, as columns, or copied without the lines that cannot be read.

DuckDB is the other reader (:mod:`probe.core.storage.duckdb_reader`). It need not be installed where training runs, and
a query for each of the small files that a run leaves (one a signal and step, unless configured otherwise) would take
longer to start than the file takes to read. It ends a whole query at lines that this reader skips: for files with such
lines it gets a copy (:func:`mend`).
"""

from __future__ import annotations

import csv
import gc
import io
import os
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from probe.core.language import message
from probe.core.storage.csv_rows import rows
from probe.core.storage.directories import RankDirectory
from probe.core.storage.files import opened
from probe.core.storage.layout import CSV, INTEGERS, STEP, decimal, is_number, whole
from probe.core.storage.location import Place
from probe.core.storage.problems import NAMED, Problems, cannot_be_read, left_out
from probe.core.storage.table_files import FilesBySignal, TableFile, tables

PIECE_BYTES = 1 << 20
"""Bytes that are read at a time."""
MOST_LINES = 1000
"""Lines beyond these bytes over which a row may continue."""


class CsvColumns(NamedTuple):
    """Rows of a file, column by column, and lines of it that cannot be read."""

    about: dict[str, Sequence[Any]]
    """The columns that are no values: whole numbers and texts."""
    values: dict[str, Any]
    """Array by column, masked where cells are empty."""
    bad: int = 0
    """Rows that are left out."""
    named: tuple[tuple[int, str], ...] = ()
    """The first of these rows: the line and its defect."""

    @property
    def number(self) -> int:
        """Number of rows."""
        return len(next(iter(self.about.values()), ()))


def read(file: TableFile, begin: int, end: int, before: int) -> CsvColumns:
    """Return the rows from byte ``begin`` to byte ``end - 1``, one of the spans of :func:`spans`.

    Raises:
        OSError: if the file cannot be read.
    """
    with opened(file.path) as source:
        source.seek(begin)
        return _columns(file, source.read(end - begin), before)


def read_all(file: TableFile, problems: Problems) -> Iterator[CsvColumns]:
    """Yield all rows of a file, in order; lines that cannot be read are recorded in ``problems``.

    Raises:
        OSError: if the file cannot be read.
    """
    bad = 0
    for _, before, data in _pieces(file):
        piece = _columns(file, data, before)
        for line, wrong in piece.named[: max(0, NAMED - bad)]:
            problems.add(file.path, wrong, line)
        bad += piece.bad
        yield piece
    if bad > NAMED:
        problems.add(file.path, cannot_be_read(bad - NAMED))


def spans(file: TableFile) -> Iterator[tuple[int, int, int]]:
    """Yield the first byte of pieces of whole rows after the header, the one after the last, and the number of lines
    before.

    Raises:
        OSError: if the file cannot be read.
    """
    for begin, before, data in _pieces(file):
        yield begin, begin + len(data), before


def _pieces(file: TableFile) -> Iterator[tuple[int, int, bytes]]:
    """Yield the text after the header in pieces of whole rows, each with its first byte and the number of lines before
    it."""
    with opened(file.path) as source:
        end = source.seek(0, os.SEEK_END) - file.torn
        source.seek(0)
        source.readline()
        before, place = 1, source.tell()
        while place < end:
            block = source.read(min(PIECE_BYTES, end - place))
            lines = [block, source.readline() if source.tell() < end else b""]
            # within a cell that has line breaks the number of quotes is odd
            while sum(line.count(b'"') for line in lines) % 2 and source.tell() < end and len(lines) < MOST_LINES:
                lines.append(source.readline())
            data = b"".join(lines)
            yield place, before, data
            before += data.count(b"\n")
            place += len(data)


def _columns(file: TableFile, data: bytes, before: int) -> CsvColumns:
    """Return the rows of ``data``; lines within unclosed quotes are left out, as DuckDB does.

    Args:
        before: number of lines before ``data``.
    """
    text = data.decode("utf-8", "backslashreplace")
    with collector_paused():
        try:
            table = [row for row in csv.reader(io.StringIO(text, newline=""), strict=True) if row]
            if set(map(len, table)) <= {len(file.columns)}:
                return _converted(file.columns, table, text.isascii())
        except (csv.Error, ValueError):
            pass  # nothing is lost: the text is read again, row by row, to name the rows that cannot be read
        return _row_by_row(file.columns, text, before)


@contextmanager
def collector_paused() -> Iterator[None]:
    """Context without garbage collection, which a million new cells would start again and again, in vain."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


def _row_by_row(columns: Sequence[str], text: str, before: int) -> CsvColumns:
    good: list[list[str]] = []
    named: list[tuple[int, str]] = []
    bad = 0
    for row in rows(io.StringIO(text, newline="\n")):
        wrong = row.wrong or (_misfit(columns, row.cells) if row.cells else "")
        if wrong:
            bad += 1
            if bad <= NAMED:
                named.append(
                    (before + row.line, message("{error}: {result}", error=wrong, result=left_out(len(row.lines) - 1)))
                )
        elif row.cells:
            good.append(row.cells)
    return _converted(columns, good, is_ascii=True)._replace(bad=bad, named=tuple(named))


def _misfit(columns: Sequence[str], cells: Sequence[str]) -> str:
    """Return the defect of a row; empty if there is none."""
    if len(cells) != len(columns):
        return message("expected {columns} cells, got {cells}", columns=len(columns), cells=len(cells))
    for column, cell in zip(columns, cells, strict=True):
        try:
            if column in INTEGERS:
                whole(column, cell)
            elif is_number(column):
                decimal(cell)
        except ValueError:
            return message("expected a number in column {column}, got {cell!r}", column=column, cell=cell[:40])
    return ""


def _converted(columns: Sequence[str], table: Sequence[Sequence[str]], is_ascii: bool) -> CsvColumns:
    """Return the cells of ``table`` as columns.

    Args:
        is_ascii: True if the cells of numbers are known to be ASCII, as those are that have been read one by one.

    Raises:
        ValueError: if a cell has no number and its column needs one.
    """
    cells = dict(zip(columns, zip(*table, strict=True) if table else ((),) * len(columns), strict=True))
    texts = {column: _known(column, cells[column]) for column in columns if not is_number(column)}
    if not is_ascii:  # a name may have any characters
        for column in filter(is_number, columns):
            deque(map(decimal, cells[column]), maxlen=0)
    return CsvColumns(texts, {column: _numbers(cells[column]) for column in columns if is_number(column)})


def _known(column: str, cells: Sequence[str]) -> Sequence[Any]:
    if column not in INTEGERS:
        return cells
    numbers = {cell: whole(column, cell) for cell in set(cells)}
    return [*numbers.values()] * len(cells) if len(numbers) == 1 else [*map(numbers.__getitem__, cells)]


def _numbers(cells: Sequence[str]) -> Any:
    try:
        return np.array(list(map(float, cells)))
    except ValueError:
        full = [bool(cell) for cell in cells]  # float raises once more for a cell that is no number
        return np.ma.array([float(cell or 0) for cell in cells], mask=np.logical_not(full))  # type: ignore[no-untyped-call]


class PlainRows(FilesBySignal):
    """CSV files of ``directories``, a reader for :func:`probe.core.storage.batches.steps`."""

    def __init__(self, directories: Sequence[RankDirectory], problems: Problems) -> None:
        self.directories = tuple(directories)
        self.problems = problems
        files: dict[str, list[tuple[int, TableFile]]] = {}
        for n, directory in enumerate(self.directories):
            for file in tables(directory.path, problems):
                if file.format == CSV:
                    files.setdefault(file.signal, []).append((n, file))
        super().__init__(files)

    def original(self, file: TableFile) -> Place:
        """Return the file that a rank has written: each is read as it is."""
        return file.path

    def read(
        self, files: Sequence[TableFile], first: int | None, last: int | None
    ) -> tuple[tuple[str, ...], Iterator[tuple[Any, ...]]]:
        """Return the columns of ``files``, which are alike, and the rows from step ``first`` to ``last``, in order."""
        return files[0].columns, self._rows(files, first, last)

    def _rows(self, files: Sequence[TableFile], first: int | None, last: int | None) -> Iterator[tuple[Any, ...]]:
        columns = files[0].columns
        at = columns.index(STEP)
        for file in files:
            for record in read_all(file, self.problems):
                cells = record.about | {column: values.tolist() for column, values in record.values.items()}
                for row in zip(*(cells[column] for column in columns), strict=True):
                    if (first is None or row[at] >= first) and (last is None or row[at] <= last):
                        yield row


def is_sound(file: TableFile) -> bool:
    """Return whether DuckDB reads the file as it is: its last line is finished, and no line break is a lone CR, or CR
    LF in one line and LF in the next (``The CSV Parser state machine reached an invalid state``, DuckDB 2.0)."""
    if file.torn or file.format != CSV:
        return not file.torn
    with opened(file.path) as source:
        return not any(b"\r" in block for block in iter(lambda: source.read(PIECE_BYTES), b""))


def mend(file: TableFile, copy: Path, problems: Problems) -> None:
    """Write ``copy`` without an unfinished last line, with LF at the end of each row, and with an empty line for each
    line that cannot be read. The first few of these are recorded in ``problems``, and the number of the others."""
    bad = 0
    with opened(file.path) as source, copy.open("wb") as target:
        for row in rows(_lines(source, source.seek(0, os.SEEK_END) - file.torn)):
            bad += bool(row.wrong)
            if row.wrong and bad <= NAMED:
                problems.add(
                    file.path,
                    message("{error}: {result}", error=row.wrong, result=left_out(len(row.lines) - 1)),
                    row.line,
                )
            *before, last = row.lines
            ended = last.rstrip("\r\n") + "\n"
            text = "\n" * len(row.lines) if row.wrong else "".join([*before, ended])
            target.write(text.encode("latin-1"))
    if bad > NAMED:
        problems.add(file.path, cannot_be_read(bad - NAMED))


def _lines(source: io.BufferedReader, size: int) -> Iterator[str]:
    """Yield the lines that begin in the first ``size`` bytes, one character for each byte."""
    source.seek(0)
    for line in source:
        if size <= 0:
            return
        size -= len(line)
        yield line.decode("latin-1")
