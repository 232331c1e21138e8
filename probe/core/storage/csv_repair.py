"""Copies of CSV files in which DuckDB reads every line that can be read: it ends a whole query at lines that other
readers skip."""

from __future__ import annotations

import os
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path

from probe.core.storage.csv_rows import rows
from probe.core.storage.layout import CSV
from probe.core.storage.problems import NAMED, Problems, cannot_be_read, left_out
from probe.core.storage.regular_files import opened
from probe.core.storage.table_files import TableFile

BLOCK = 1 << 20


def is_sound(file: TableFile) -> bool:
    """Return whether DuckDB reads the file as it is: its last line is finished, and no line break is a lone CR, or CR
    LF in one line and LF in the next (``The CSV Parser state machine reached an invalid state``, DuckDB 2.0)."""
    if file.torn or file.format != CSV:
        return not file.torn
    with opened(file.path) as source:
        return not any(b"\r" in block for block in iter(lambda: source.read(BLOCK), b""))


def mend(file: TableFile, copy: Path, problems: Problems) -> None:
    """Write ``copy`` without an unfinished last line, with LF at the end of each row, and with an empty line for each
    line that cannot be read. The first few of these are recorded in ``problems``, and the number of the others."""
    bad = 0
    with opened(file.path) as source, copy.open("wb") as target:
        for row in rows(_lines(source, source.seek(0, os.SEEK_END) - file.torn)):
            bad += bool(row.wrong)
            if row.wrong and bad <= NAMED:
                problems.add(file.path, f"{row.wrong}: {left_out(len(row.lines) - 1)}", row.line)
            *before, last = row.lines
            ended = last.rstrip("\r\n") + "\n"
            text = "\n" * len(row.lines) if row.wrong else "".join([*before, ended])
            target.write(text.encode("latin-1"))
    if bad > NAMED:
        problems.add(file.path, cannot_be_read(bad - NAMED))


def _lines(source: BufferedReader, size: int) -> Iterator[str]:
    """Yield the lines that begin in the first ``size`` bytes, one character for each byte."""
    source.seek(0)
    for line in source:
        if size <= 0:
            return
        size -= len(line)
        yield line.decode("latin-1")
