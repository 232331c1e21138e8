"""The layout of a table on disk: names of files, columns, cells, coverage of shards."""

from __future__ import annotations

import csv
import io
import math
import os
import re
from collections.abc import Container, Sequence
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from probe.core.histogram import HISTOGRAM
from probe.core.messages import plural
from probe.core.moments import MOMENTS, OPS
from probe.core.records import Array, Batch, Coverage, Key
from probe.core.storage.manifest_fields import MOST_RANKS
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


_COVERAGE = re.compile(r"(\d+) of \[(.*)\] (at|term) (.*) over ranks (.*)")
_PART = re.compile(r"(?:(.*)\.)?((?:input|output)(?:_\d+)?|pre|post)", re.DOTALL)
_WITH_PARTS = frozenset({"actv", "actv_grad", "other"})
"""Signals whose rows are about a part of what has the name."""


def key_of(signal: str, name: str, micro_step: int, call: int, stage: int) -> Key:
    """The key of a row whose cell ``name`` is as :func:`probe.core.naming.cell_name` writes it."""
    if call:
        name = name.removesuffix(f".call{call}")
    part = _PART.fullmatch(name) if signal in _WITH_PARTS else None
    if part is None:
        return Key(name, "", micro_step, call, stage)
    return Key(part[1] or "", part[2], micro_step, call, stage)


def shape_of(text: str | None) -> tuple[int, ...]:
    """``[3, 2]`` or ``(3, 2)``; a scalar's if there is none.

    Raises:
        ValueError: if it is neither.
    """
    return tuple(int(size) for size in (text or "").strip("[]()").split(",") if size.strip())


def coverage_of(text: str | None) -> Coverage | None:
    """What :meth:`probe.core.records.Coverage.text` has written; None for a whole tensor."""
    found = _COVERAGE.fullmatch(text or "")
    if found is None:
        return None
    _, shape, kind, part, ranks = found.groups()
    return Coverage(shape_of(shape), part, ranks_of(ranks), kind == "term")


def ranks_of(text: str) -> tuple[int, ...]:
    """What :func:`probe.core.records.ranks_text` has written: ``0-3``, ``0-6:2`` or ``0,1,5``.

    Raises:
        ValueError: if it is none of these, or more than ``MOST_RANKS``.
    """
    span, _, stride = text.partition(":")
    first, dash, last = span.partition("-")
    if dash:
        ranks = range(int(first), int(last) + 1, int(stride or 1))
        if last > first and int(last) - int(first) > MOST_RANKS:
            raise ValueError(f"expected at most {MOST_RANKS} ranks, got {text}")
        return tuple(ranks)
    return tuple(int(rank) for rank in text.split(",") if rank)


def coverages(batch: Batch) -> list[str]:
    """Of each row what it covers of a tensor that ranks share, ``""`` for a whole one; empty if all are whole."""
    return [
        coverage.text(math.prod(shape)) if coverage else ""
        for coverage, shape in zip(batch.coverage, batch.shapes, strict=False)
    ]


def ops_of(batch: Batch, ops: Sequence[str]) -> tuple[str, ...]:
    """Those of ``ops`` that ``batch`` can answer, in their order, then the columns that its signal adds."""
    derived = [op for op in ops if op in OPS and OPS[op].moment in batch.columns]
    added = [name for name in batch.columns if name not in MOMENTS and name not in (HISTOGRAM, *derived)]
    return (*derived, *added)


def histograms_of(batch: Batch, ops: Container[str]) -> Array | None:
    """``len(batch) x BINS`` counts, if ``ops`` or ``batch`` itself ask for them and it has them."""
    return batch.columns.get(HISTOGRAM) if batch.distribution or HISTOGRAM in ops else None
