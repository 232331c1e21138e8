"""Tables of a rank's directory: each file is checked once, and left out if it cannot be read."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Mapping, Sequence
from io import BufferedReader
from itertools import islice
from typing import Any, NamedTuple

from probe.core.language import MessageError, invalid, joined, message
from probe.core.messages import counted
from probe.core.storage.csv_rows import rows
from probe.core.storage.files import LONGEST_LINE, check_lines, opened
from probe.core.storage.layout import (
    CSV,
    EXAMPLE,
    INTEGERS,
    KEY,
    MOST_COLUMNS,
    NEEDED,
    PARQUET,
    STACKS,
    STEP,
    TAKEN,
    TEXT,
    is_table_suffix,
    table_name,
    whole,
)
from probe.core.storage.location import Place, contents
from probe.core.storage.problems import Problems
from probe.core.storage.sql import listed

KNOWN = frozenset({STACKS})
"""Other tables of the monitor, which are not read as signals."""
_PARQUET_MARK = b"PAR1"


class PackedRows(NamedTuple):
    """The place in a packed run of the rows that a rank wrote to one file."""

    path: Place
    """The packed file."""
    rank: int
    directory: int
    """Position of the directory among those of the rank."""
    name: int
    """Number of the file's name."""


class TableFile(NamedTuple):
    """One file of one signal."""

    path: Place
    signal: str
    first: int
    """The first step that may be in it."""
    last: int
    """The last step that may be in it."""
    part: int
    format: str
    """``csv`` or ``parquet``; ``sqlite`` and ``packed`` if the rows are in another file."""
    columns: tuple[str, ...]
    """Empty for Parquet files, which contain their schema."""
    torn: int = 0
    """Bytes of an unfinished last line."""
    ranks: tuple[int, int] | None = None
    """First and last rank in a file of a packed run; None if it is one rank's own."""
    rows: int = 0
    """Number of rows; 0 if unknown."""
    bytes: int = 0
    """Size; 0 if unknown."""
    modified_ns: int = 0
    """Time of the last change, in nanoseconds since the epoch; 0 if unknown."""
    packed: PackedRows | None = None
    """Place of the rows in a packed run; None for a file that exists."""


Files = Mapping[str, Sequence[tuple[int, TableFile]]]
"""Files by signal, each with the index of its directory, in the order of directory and step."""


class FilesBySignal:
    """Files of some directories."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self._by_directory: dict[str, dict[int, list[TableFile]]] = {}

    def files_of(self, signal: str, n: int) -> Sequence[TableFile]:
        """Return the files of a signal in the directory of an index, in the order of steps."""
        if signal not in self._by_directory:
            files = self._by_directory[signal] = {}
            for directory, file in self.files.get(signal, ()):
                files.setdefault(directory, []).append(file)
        return self._by_directory[signal].get(n, ())


def tables(directory: Place, problems: Problems) -> list[TableFile]:
    """Return every file of a rank's directory that can be read, by signal and step."""
    files = (table_file(path, problems) for path in contents(directory) if is_table_suffix(path.suffix))
    return sorted((f for f in files if f), key=lambda f: (f.signal, f.first, f.part, f.path.name))


def size_and_time(file: TableFile) -> tuple[int, int]:
    """Return the size of a file, and the time of its last change in nanoseconds since the epoch; of a packed one as the
    rank had written it.

    Raises:
        OSError: if there is no such file.
    """
    if file.modified_ns:
        return file.bytes, file.modified_ns
    status = file.path.stat()
    return status.st_size, status.st_mtime_ns


def each_once(files: Sequence[TableFile]) -> list[TableFile]:
    """Drop the Parquet files of steps that are in CSV files too, which are complete up to the last step."""
    in_csv = {(file.signal, file.first) for file in files if file.format == CSV}
    return [file for file in files if file.format == CSV or (file.signal, file.first) not in in_csv]


def has_tables(directory: Place) -> bool:
    """Return whether a rank's directory has a file of any signal."""
    return any(table_name(path.name) for path in directory.iterdir())


def first_step(directory: Place) -> int:
    """Return the lowest step in a rank's directory, from the first rows of the files that may have it; 0 if unknown."""
    named = [(name, path) for path in directory.iterdir() if (name := table_name(path.name))]
    if not named:
        return 0
    lowest = min(name.first for name, _ in named)
    steps = (_first_row(path) for name, path in named if name.first == lowest and name.format == CSV)
    return min((step for step in steps if step is not None), default=lowest)


def _first_row(path: Place) -> int | None:
    try:
        with opened(path) as file:
            start = file.read(LONGEST_LINE).decode("utf-8", "replace")
        header, first = islice(rows(io.StringIO(start, newline="\n")), 2)
        return whole(STEP, first.cells[header.cells.index(STEP)])
    except (OSError, IndexError, ValueError):  # nothing is lost: reading the file names the defect
        return None


def table_file(path: Place, problems: Problems) -> TableFile | None:
    """Return the file at ``path``; None if it is no table, or cannot be read, which is recorded."""
    if path.name.startswith(".") or path.name in KNOWN:
        return None
    name = table_name(path.name)
    if not name:
        problems.add(
            path,
            message("expected a name such as {example}; not a file of the monitor, left out", example=EXAMPLE),
            skipped=False,
        )
        return None
    try:
        if name.format == PARQUET:
            columns, torn = _look_at_parquet(path), 0
        else:
            columns, torn = _look_at_csv(path, problems)
    except (OSError, ValueError) as error:
        problems.add(path, message("{error}: left out", error=error), 1 if isinstance(error, _HeaderError) else None)
        return None
    return TableFile(path, name.signal, name.first, name.last, name.part, name.format, columns, torn)


class _HeaderError(MessageError, ValueError):
    """The first line is not a header of the monitor."""


def _look_at_csv(path: Place, problems: Problems) -> tuple[tuple[str, ...], int]:
    """Return the columns, and the bytes of a last line that is not finished."""
    with opened(path) as file:
        start = file.read(LONGEST_LINE)
        if not start:
            raise invalid("expected a table; the file is empty")
        line, ended, _ = start.partition(b"\n")
        if not ended:
            raise _HeaderError("expected a header; its line is not finished")
        columns = _columns(line.decode("utf-8-sig", "replace").rstrip("\r"))
        _check_whole(columns, start.decode("utf-8", "replace"))
        check_lines(file)
        torn = _torn(file)
        file.seek(0)
        number = sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b"")) + 1 if torn else 0
    if torn:
        problems.add(
            path, message("the last line is not finished ({bytes}): left out", bytes=counted(torn, "byte")), number
        )
    return columns, torn


def _columns(header: str) -> tuple[str, ...]:
    """Check the header, so that a defect that would end a query of many files leaves out this file alone."""
    if "\r" in header:  # the parser takes CR for the end of a line
        raise _HeaderError(
            "expected a header in a line that ends with LF; there is a CR within {header!r}", header=header[:60]
        )
    row = next(rows([header]), None)
    if row is not None and row.wrong:
        raise _HeaderError("expected a header; {error} in {header!r}", error=row.wrong, header=header[:60])
    columns, came = tuple(row.cells) if row else (), header[:60]
    if len(columns) > MOST_COLUMNS:
        raise _HeaderError(
            "expected at most {most} columns; there are {number}", most=MOST_COLUMNS, number=len(columns)
        )
    if columns[: len(NEEDED)] != NEEDED:
        raise _HeaderError(
            "expected a header that begins with {names}, as the run has written it; there is {came!r}",
            names=",".join(NEEDED),
            came=came,
        )
    lower = [column.lower() for column in columns]  # SQL takes Norm and norm for the same
    if len(set(lower)) < len(lower):
        raise _HeaderError("expected a header that has every column once; there is {came!r}", came=came)
    if reserved := sorted(TAKEN & set(lower)):
        raise _HeaderError(
            "expected ops as columns; there is {names} in {came!r}", names=", ".join(map(repr, reserved)), came=came
        )
    return columns


def _check_whole(columns: Sequence[str], start: str) -> None:
    """Raise ValueError if the first row has a number such as 1.5 in a column of whole ones: DuckDB would round it."""
    row = next(islice(rows(io.StringIO(start, newline="\n")), 1, None), None)
    for column, cell in zip(columns, row.cells if row else (), strict=False):
        if column in INTEGERS and _is_fraction(cell):
            raise invalid("expected whole numbers in column {column}, got {cell!r}", column=column, cell=cell)


def _is_fraction(cell: str) -> bool:
    try:
        number = float(cell)
    except ValueError:  # the line is left out, and named, when it is read
        return False
    return math.isfinite(number) and not number.is_integer()


def _torn(file: BufferedReader) -> int:
    """Return the number of bytes after the last line break."""
    size = end = file.seek(0, os.SEEK_END)
    while end:
        begin = max(0, end - LONGEST_LINE)
        file.seek(begin)
        place = file.read(end - begin).rfind(b"\n")
        if place >= 0:
            return size - begin - place - 1
        end = begin
    return size


def _look_at_parquet(path: Place) -> tuple[str, ...]:
    with opened(path) as file:
        head = file.read(len(_PARQUET_MARK))
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - len(_PARQUET_MARK)))
        tail = file.read()
    if head != _PARQUET_MARK or tail != _PARQUET_MARK:
        raise invalid("expected a Parquet file; it does not begin and end with {mark}", mark=_PARQUET_MARK.decode())
    return ()


_WHOLE = ("INT32", "INT64")
_NUMBERS = ("DOUBLE", "FLOAT", *_WHOLE)
_SCHEMA = "SELECT file_name, name, type, num_children FROM parquet_schema({files})"
_ALL = "SELECT bit_xor(hash(COLUMNS(*))) FROM read_parquet({files}, union_by_name = true)"
"""Query that decodes every page, in several threads and without keeping any; a count would read the statistics only."""


def readable(connection: Any, files: Sequence[TableFile], problems: Problems) -> list[TableFile]:
    """Return ``files`` without the Parquet files that are damaged or foreign, which are recorded in ``problems``. Each
    file is read once; if none is damaged, all in one query."""
    parquet = [file for file in files if file.format == "parquet"]
    if not parquet or _wrong(connection, parquet) is None:
        return list(files)
    sound = []
    for file in files:
        wrong = _wrong(connection, [file]) if file.format == "parquet" else None
        if wrong is None:
            sound.append(file)
        else:
            problems.add(file.path, message("{error}: left out", error=wrong))
    return sound


def _wrong(connection: Any, files: Sequence[TableFile]) -> str | None:
    """Return the first defect of any of ``files``; None if there is none."""
    import duckdb

    paths = [file.path for file in files]
    try:
        if wrong := misfit(connection, paths):
            return wrong
        connection.execute(_ALL.format(files=listed(paths))).fetchall()
    except duckdb.Error as error:
        return message("expected a Parquet file, undamaged; {error}", error=str(error).splitlines()[0][:200])
    return None


def misfit(connection: Any, paths: Sequence[Place]) -> str | None:
    """Return the first defect of the columns of any of the files; None if there is none."""
    return next(filter(None, map(_misfit, _schemas(connection, paths).values())), None)


def parquet_columns(connection: Any, paths: Sequence[Place]) -> dict[Place, tuple[str, ...]]:
    """Return the columns of Parquet files."""
    schemas = _schemas(connection, paths)
    return {path: tuple(name for name, _, _ in schemas[str(path)]) for path in paths}


def _schemas(connection: Any, paths: Sequence[Place]) -> dict[str, list[tuple[str, str, int | None]]]:
    """Return name, type and number of children of each column, by file."""
    columns: dict[str, list[tuple[str, str, int | None]]] = {}
    for path, *column in connection.execute(_SCHEMA.format(files=listed(paths))).fetchall():
        columns.setdefault(path, []).append(tuple(column))
    return {path: described[1:] for path, described in columns.items()}  # the first is the table itself


def _misfit(columns: Sequence[tuple[str, str, int | None]]) -> str | None:
    names = [name for name, _, _ in columns]
    if missing := [name for name in NEEDED if name not in names]:
        return message(
            "expected the columns {columns}; there is no {missing}",
            columns=", ".join(NEEDED),
            missing=", ".join(missing),
        )
    if len(names) > MOST_COLUMNS:
        return message("expected at most {most} columns; there are {number}", most=MOST_COLUMNS, number=len(names))
    for name, kind, children in columns:
        expected = ("BYTE_ARRAY",) if name in TEXT else _WHOLE if name in KEY else _NUMBERS
        if children or kind not in expected:
            return message(
                "expected {types} in column {name}; there is {type}",
                types=joined(" or ", expected),
                name=name,
                type=kind or message("a structure"),
            )
    return None
