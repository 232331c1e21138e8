"""Copies of CSV files in which DuckDB reads every line that can be read: it ends a whole query at what others skip."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Iterator
from io import BufferedReader
from pathlib import Path

from probe.core.storage.problems import Problems, cannot_be_read, left_out
from probe.core.storage.regular_files import opened
from probe.core.storage.table_files import TableFile

BLOCK = 1 << 20
ONE_BY_ONE = 3
"""Lines of a file that are named; more are counted."""


def is_sound(file: TableFile) -> bool:
    """Whether DuckDB takes the file as it is: its last line is finished, and no line break is a lone CR, or CR LF in
    one line and LF in the next (``The CSV Parser state machine reached an invalid state``, DuckDB 2.0)."""
    if file.torn or file.format != "csv":
        return not file.torn
    with opened(file.path) as source:
        return not any(b"\r" in block for block in iter(lambda: source.read(BLOCK), b""))


def mend(file: TableFile, copy: Path, problems: Problems) -> None:
    """Writes ``copy``, without an unfinished last line, with LF at the end of each row, and an empty line for each
    one that cannot be read: the first few of them go to ``problems``, and the number of the rest."""
    bad = 0
    with opened(file.path) as source, copy.open("wb") as target:
        for line, taken, error in _rows(source, source.seek(0, os.SEEK_END) - file.torn):
            bad += error is not None
            if error is not None and bad <= ONE_BY_ONE:
                within = b"\r" in taken[0].rstrip(b"\r\n")
                what = "expected line breaks at the end of lines, got CR within one" if within else str(error)
                problems.add(file.path, f"{what}: {left_out(len(taken) - 1)}", line)
            if taken:
                last = taken.pop().rstrip(b"\r\n") + b"\n"
                target.writelines([b"\n"] * (len(taken) + 1) if error else [*taken, last])
    if bad > ONE_BY_ONE:
        problems.add(file.path, cannot_be_read(bad - ONE_BY_ONE))


def _rows(source: BufferedReader, size: int) -> Iterator[tuple[int, list[bytes], csv.Error | None]]:
    """Of each row in the first ``size`` bytes the number of its first line, its lines, and why it is none."""
    source.seek(0)
    lines = _Lines(source, size)
    cells = csv.reader((line.decode("latin-1") for line in lines), strict=True)  # a character of each byte
    ended = False
    while not ended:
        begin, error = lines.number + 1, None
        try:
            ended = next(cells, None) is None
        except csv.Error as failed:
            error = failed
        yield begin, lines.taken, error
        lines.taken = []


class _Lines:
    """The lines of a file, and those that were taken since somebody has looked."""

    def __init__(self, source: Iterable[bytes], size: int) -> None:
        self._source, self._left = source, size
        self.number = 0
        self.taken: list[bytes] = []

    def __iter__(self) -> Iterator[bytes]:
        for line in self._source:
            if self._left <= 0:
                return
            self._left -= len(line)
            self.number += 1
            self.taken.append(line)
            yield line
