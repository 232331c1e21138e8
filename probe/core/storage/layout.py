"""The files of a directory: what each is about and which columns it has, found out by looking at its ends."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Sequence
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from probe.core.messages import plural
from probe.core.storage.problems import Problems
from probe.core.storage.regular_files import LONGEST_LINE, check_lines, opened

KEY = ("vpp_stage", "name", "step", "micro_step", "call")
"""Columns that tell rows apart."""
TEXT = ("name", "shape", "dtype", "coverage", "histogram")
"""Columns that are not numbers."""
INTEGERS = {"vpp_stage": "INTEGER", "step": "UINTEGER", "micro_step": "INTEGER", "call": "INTEGER"}
"""Columns of whole numbers, with the SQL types that they are read as."""
BOUNDS = {"INTEGER": (-(2**31), 2**31 - 1), "UINTEGER": (0, 2**32 - 1)}
"""The lowest and the highest number of these types."""
NEEDED = ("vpp_stage", "name", "step")
"""Columns that every file has, in this order."""
TAKEN = frozenset({"", "rank", "directory", "filename", "rowid"})
"""What no column of a file can be called: rows are read together with columns of these names."""
MOST_COLUMNS = 500
"""That a file can have. DuckDB 2.0 ends the process where a query groups by some thousands."""
KNOWN = frozenset({"stack_info.csv"})
"""Other tables, which belong there."""

_NAME = re.compile(r"(.+)_(\d+)-(\d+)(?:_part_(\d+))?\.(csv|parquet)")
_PARQUET = b"PAR1"


class TableFile(NamedTuple):
    """One file of one signal."""

    path: Path
    signal: str
    first: int
    """The first step that may be in it."""
    part: int
    format: str
    """``csv`` or ``parquet``."""
    columns: tuple[str, ...]
    """Empty for Parquet files, which say themselves what they hold."""
    torn: int = 0
    """Bytes of an unfinished last line."""


def tables(directory: Path, problems: Problems) -> list[TableFile]:
    """Every file of a rank's directory that can be read, by signal and step."""
    found = (_look(path, problems) for path in sorted(directory.iterdir()) if path.suffix in (".csv", ".parquet"))
    return sorted((f for f in found if f), key=lambda f: (f.signal, f.first, f.part, f.path.name))


def each_once(found: Sequence[TableFile]) -> list[TableFile]:
    """Without the Parquet files of what there is as CSV too, which is complete up to the last step."""
    in_csv = {(file.signal, file.first) for file in found if file.format == "csv"}
    return [file for file in found if file.format == "csv" or (file.signal, file.first) not in in_csv]


def has_tables(directory: Path) -> bool:
    """Whether any file of a signal is in a rank's directory."""
    return any(_NAME.fullmatch(path.name) for path in directory.iterdir())


def first_step(directory: Path) -> int:
    """The lowest step in a rank's directory, by the first row of each of the files that could have it; 0 if unknown."""
    named = [(int(name[2]), path) for path in directory.iterdir() if (name := _NAME.fullmatch(path.name))]
    if not named:
        return 0
    lowest = min(first for first, _ in named)
    rows = (_first_row(path) for first, path in named if first == lowest and path.suffix == ".csv")
    return min((step for step in rows if step is not None), default=lowest)


def _first_row(path: Path) -> int | None:
    try:
        with opened(path) as file:
            start = file.read(LONGEST_LINE).decode("utf-8", "replace")
        row = next(csv.DictReader(io.StringIO(start, newline="")))
        return whole("step", row["step"])
    except (OSError, StopIteration, KeyError, TypeError, ValueError, csv.Error):
        return None


def _look(path: Path, problems: Problems) -> TableFile | None:
    if path.name.startswith(".") or path.name in KNOWN:
        return None
    name = _NAME.fullmatch(path.name)
    if not name:
        problems.add(path, "expected a name such as actv_0-0.csv; not a file of the monitor, left out", skipped=False)
        return None
    signal, first, part, kind = unquote(name[1]), int(name[2]), int(name[4] or 0), name[5]
    try:
        if kind == "parquet":
            columns, torn = _look_at_parquet(path), 0
        else:
            columns, torn = _look_at_csv(path, problems)
    except (OSError, ValueError) as error:
        problems.add(path, f"{error}: left out", 1 if isinstance(error, _HeaderError) else None)
        return None
    return TableFile(path, signal, first, part, kind, columns, torn)


class _HeaderError(ValueError):
    """The first line is no header of ours."""


def _look_at_csv(path: Path, problems: Problems) -> tuple[tuple[str, ...], int]:
    """The columns, and the bytes of a last line that is not finished."""
    with opened(path) as file:
        start = file.read(LONGEST_LINE)
        if not start:
            raise ValueError("expected a table; the file is empty")
        line, ended, _ = start.partition(b"\n")
        if not ended:
            raise _HeaderError("expected a header; its line is not finished")
        columns = _columns(line.decode("utf-8", "replace").rstrip("\r"))
        check_lines(file)
        torn = _torn(file)
        number = _line_breaks(file) + 1 if torn else 0
    if torn:
        problems.add(path, f"the last line is not finished ({torn} {plural(torn, 'byte')}): left out", number)
    return columns, torn


def _columns(header: str) -> tuple[str, ...]:
    if "\r" in header:  # which csv takes for the end of a line
        raise _HeaderError(f"expected a header in a line that ends with LF; there is a CR within {header[:60]!r}")
    try:
        columns = tuple(next(csv.reader([header], strict=True)))
    except csv.Error as error:
        raise _HeaderError(f"expected a header; {error} in {header[:60]!r}") from None
    _check_header(columns, header[:60])
    return columns


def _check_header(columns: tuple[str, ...], there: str) -> None:
    """What would stop a query of many files stops only the file that has it."""
    if len(columns) > MOST_COLUMNS:
        raise _HeaderError(f"expected at most {MOST_COLUMNS} columns; there are {len(columns)}")
    if columns[: len(NEEDED)] != NEEDED:
        raise _HeaderError(f"expected a header that begins with {','.join(NEEDED)}; there is {there!r}")
    lower = [column.lower() for column in columns]  # SQL takes Norm and norm for the same
    if len(set(lower)) < len(lower):
        raise _HeaderError(f"expected a header that has every column once; there is {there!r}")
    if taken := sorted(TAKEN & set(lower)):
        raise _HeaderError(f"expected ops as columns; there is {', '.join(map(repr, taken))} in {there!r}")


def _torn(file: BufferedReader) -> int:
    """Bytes behind the last line break."""
    size = end = file.seek(0, os.SEEK_END)
    while end:
        begin = max(0, end - LONGEST_LINE)
        file.seek(begin)
        place = file.read(end - begin).rfind(b"\n")
        if place >= 0:
            return size - begin - place - 1
        end = begin
    return size


def _line_breaks(file: BufferedReader) -> int:
    file.seek(0)
    return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))


def _look_at_parquet(path: Path) -> tuple[str, ...]:
    with opened(path) as file:
        head = file.read(len(_PARQUET))
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - len(_PARQUET)))
        tail = file.read()
    if head != _PARQUET or tail != _PARQUET:
        raise ValueError(f"expected a Parquet file; it does not begin and end with {_PARQUET.decode()}")
    return ()


def is_number(column: str) -> bool:
    """Whether a column holds a signal's numbers, as ops do."""
    return column not in KEY and column not in TEXT


def whole(column: str, cell: str | int) -> int:
    """The whole number in a cell.

    Raises:
        ValueError: if it is none, or none that its column can hold.
    """
    number = int(cell)
    low, high = BOUNDS[INTEGERS[column]]
    if not low <= number <= high:
        raise ValueError(f"expected a {column} from {low} to {high}, got {cell}")
    return number


def type_of(column: str) -> str:
    """The SQL type of a column."""
    return INTEGERS.get(column) or ("VARCHAR" if column in TEXT else "DOUBLE")
