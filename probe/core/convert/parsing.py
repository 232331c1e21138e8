"""One file, or a piece of a large one, as rows; what cannot be read is told by its line.

CSV is read without an engine: starting a query for each of the small files that a run leaves (one a signal and step,
unless configured otherwise) would take longer than reading them.
"""

from __future__ import annotations

import csv
import gc
import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from probe.core.convert.rows import Form, Rows, Target, numbered
from probe.core.reading.files import KEY, NEEDED, TEXT, TableFile
from probe.core.reading.rows import ABOUT, connect

PIECE_BYTES = 1 << 20
"""Of a CSV file that are read at a time."""
PIECE_ROWS = 100_000
"""Of a Parquet file that are read at a time."""
TOLD = 3
"""Bad lines of a piece that are told one by one."""


class Piece(NamedTuple):
    """Part of a file: from byte ``begin`` to byte ``end`` of a CSV file, or rows of a Parquet file."""

    file: TableFile
    rank: int
    begin: int
    end: int
    last: bool
    """Whether no other piece of the file follows."""


class Trouble(NamedTuple):
    """Something in a file that could not be read."""

    line: int | None
    what: str


class Parsed(NamedTuple):
    """What a piece holds."""

    rows: Rows | None
    bad: int
    """Lines that were left out."""
    troubles: list[Trouble]


def pieces(file: TableFile, rank: int, size: int) -> Iterator[Piece]:
    """The pieces of ``file``, in order; at least one.

    Args:
        size: of the file, in bytes.

    Raises:
        ValueError: if a Parquet file is none.
    """
    if file.format == "parquet":
        size, step = _parquet_rows(file.path), PIECE_ROWS
    else:
        size, step = size - file.torn, PIECE_BYTES
    for begin in range(0, max(1, size), step):
        end = min(begin + step, size)
        yield Piece(file, rank, begin, end, end == size)


def parse(piece: Piece) -> Parsed:
    """The rows of ``piece``.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if a Parquet file is none or has other columns than it must.
    """
    if piece.file.format == "parquet":
        return _parse_parquet(piece)
    with _collector_paused():
        return _parse_csv(piece)


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


def _parse_csv(piece: Piece) -> Parsed:
    text, start = _text(piece)
    width = len(piece.file.columns)
    try:
        table = [row for row in csv.reader(io.StringIO(text, newline="")) if row]
        if set(map(len, table)) <= {width}:
            return Parsed(_rows(piece, table), 0, [])
    except (csv.Error, ValueError):
        pass  # one of the lines is bad: which one, the slower way tells
    return _parse_lines(piece, text, start)


def _text(piece: Piece) -> tuple[str, int]:
    """The whole lines that begin in ``piece``, without the header, and the byte at which they begin."""
    with piece.file.path.open("rb") as file:
        begin = _next_line(file, max(0, piece.begin - 1))
        end = piece.end if piece.last else _next_line(file, piece.end - 1)
        file.seek(begin)
        return file.read(max(0, end - begin)).decode("utf-8", "backslashreplace"), begin


def _next_line(file: io.BufferedReader, position: int) -> int:
    """Where the first line begins that does so after ``position``."""
    file.seek(position)
    file.readline()
    return file.tell()


def _parse_lines(piece: Piece, text: str, start: int) -> Parsed:
    """As :func:`_parse_csv`, line by line."""
    good, troubles, bad = [], list[Trouble](), 0
    first = None
    for number, line in enumerate(text.split("\n")):
        if not line.strip("\r"):
            continue
        what = _wrong(line, piece.file.columns)
        if not what:
            good.append(next(csv.reader([line])))
            continue
        bad += 1
        first = first if first is not None else _lines_before(piece.file.path, start)
        if len(troubles) < TOLD:
            troubles.append(Trouble(first + number + 1, f"{what}: this line is left out"))
    if bad > TOLD:
        troubles.append(Trouble(None, f"{bad - TOLD} more lines cannot be read and are left out"))
    return Parsed(_rows(piece, good), bad, troubles)


def _lines_before(path: Path, position: int) -> int:
    with path.open("rb") as file:
        return sum(1 for _ in io.BytesIO(file.read(position)))


def _wrong(line: str, columns: Sequence[str]) -> str:
    """What is wrong with ``line``; empty if nothing is."""
    try:
        cells = next(csv.reader([line], strict=True))
    except csv.Error as error:
        return f"expected cells with paired quotes; {error}"
    if len(cells) != len(columns):
        return f"expected {len(columns)} cells, got {len(cells)}"
    for column, cell in zip(columns, cells, strict=True):
        if column in TEXT:
            continue
        try:
            _CONVERSIONS.get(column, _number)(cell)
        except ValueError:
            return f"expected a number in column {column}, got {cell[:40]!r}"
    return ""


def _number(cell: str) -> float | None:
    return float(cell) if cell else None


_CONVERSIONS: dict[str, Callable[[str], float | None]] = {"step": int, "vpp_stage": int, "micro_step": int, "call": int}


def _rows(piece: Piece, table: Sequence[Sequence[str]]) -> Rows | None:
    """The cells of ``table`` as columns.

    Raises:
        ValueError: if a cell is not what its column needs.
    """
    if not table:
        return None
    cells: dict[str, Sequence[Any]] = dict(zip(piece.file.columns, zip(*table, strict=True), strict=True))
    values = {column: _numbers(cells[column]) for column in piece.file.columns if column not in (*KEY, *TEXT)}
    return _assembled(piece, cells, np.array(list(map(int, cells["step"])), dtype=np.int64), values)


def _numbers(cells: Sequence[str]) -> Any:
    try:
        return np.array(list(map(float, cells)))
    except ValueError:
        found = [_number(cell) for cell in cells]  # raises for what is neither a number nor missing
        masked: Callable[..., Any] = np.ma.MaskedArray
        return masked([0.0 if x is None else x for x in found], mask=[x is None for x in found])


def _assembled(piece: Piece, cells: dict[str, Sequence[Any]], steps: Any, values: dict[str, Any]) -> Rows:
    zeros, nothing = ["0"] * len(steps), [""] * len(steps)
    keys = zip(cells["name"], cells["vpp_stage"], cells.get("micro_step", zeros), cells.get("call", zeros), strict=True)
    targets, target = numbered(keys)
    forms, form = numbered(zip(*(cells.get(column, nothing) for column in ABOUT), strict=True))
    return Rows(
        signal=piece.file.signal,
        rank=piece.rank,
        steps=steps,
        targets=[Target(name or "", *map(int, numbers)) for name, *numbers in targets],
        target=target,
        forms=[Form(*(text or "" for text in texts)) for texts in forms],
        form=form,
        values=values,
        micro_stepped="micro_step" in cells,
    )


def _parquet_rows(path: Path) -> int:
    with _duckdb() as connection:
        query = "SELECT coalesce(sum(num_rows), 0) FROM parquet_file_metadata(?)"
        return int(connection.execute(query, [str(path)]).fetchone()[0])


def _parse_parquet(piece: Piece) -> Parsed:
    with _duckdb() as connection:
        query = "SELECT * FROM read_parquet(?) LIMIT ? OFFSET ?"
        found = connection.execute(query, [str(piece.file.path), piece.end - piece.begin, piece.begin]).fetchnumpy()
    missing = [column for column in NEEDED if column not in found]
    if missing:
        raise ValueError(f"expected the columns {', '.join(NEEDED)}; there is no {', '.join(missing)}")
    if not len(found["step"]):
        return Parsed(None, 0, [])
    texts = {column: cells.tolist() for column, cells in found.items() if column in (*KEY, *TEXT)}
    values = {column: cells.astype(np.float64) for column, cells in found.items() if column not in (*KEY, *TEXT)}
    return Parsed(_assembled(piece, texts, np.asarray(found["step"], dtype=np.int64), values), 0, [])


@contextmanager
def _duckdb() -> Iterator[Any]:
    """A connection for one file.

    Raises:
        ImportError: if duckdb is missing.
        ValueError: if what is done with it fails.
    """
    connection = connect(threads=1)
    import duckdb

    try:
        yield connection
    except duckdb.Error as error:
        raise ValueError(f"expected a Parquet file; {' '.join(str(error).split())}") from error
    finally:
        connection.close()
