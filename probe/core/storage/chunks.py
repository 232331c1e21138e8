"""Files, or pieces of large ones, as rows; lines that cannot be read are named."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from probe.core.storage import csv_reader
from probe.core.storage.csv_reader import PIECE_BYTES
from probe.core.storage.duckdb_reader import connect, misfit
from probe.core.storage.layout import KEY, PARQUET, TEXT
from probe.core.storage.location import Place, failure_of, readable_by_duckdb
from probe.core.storage.metric_rows import MetricRows, assembled
from probe.core.storage.problems import cannot_be_read
from probe.core.storage.sql import pattern_of
from probe.core.storage.table_files import TableFile

PIECE_ROWS = 100_000
"""Rows of a Parquet file that are read at a time."""


class Chunk(NamedTuple):
    """Part of a file: from byte ``begin`` to byte ``end`` of a CSV file, or rows of a Parquet file."""

    file: TableFile
    rank: int
    begin: int
    end: int
    last: bool
    """True if no other piece of the file follows."""


class ParsedChunk(NamedTuple):
    """The rows of a piece."""

    rows: MetricRows | None
    bad: int = 0
    """Rows that were left out."""
    troubles: tuple[tuple[int | None, str], ...] = ()
    """The first of these rows: the line and its defect."""


def pieces(file: TableFile, rank: int, size: int) -> Iterator[Chunk]:
    """Yield the pieces of ``file``, in order; at least one.

    Args:
        size: size of the file in bytes.

    Raises:
        ImportError: if a Parquet file needs DuckDB, and that is missing.
        ValueError: if a Parquet file is invalid.
    """
    if file.format == PARQUET:
        size, step = _number_of_rows(file.path), PIECE_ROWS
    else:
        size, step = size - file.torn, PIECE_BYTES
    for begin in range(0, max(1, size), step):
        end = min(begin + step, size)
        yield Chunk(file, rank, begin, end, end == size)


def parse(piece: Chunk) -> ParsedChunk:
    """Return the rows of ``piece``.

    Raises:
        ImportError: if a Parquet file needs DuckDB, and that is missing.
        OSError: if the file cannot be read.
        ValueError: if a Parquet file is invalid or has other columns than it must have.
    """
    file = piece.file
    if file.format == PARQUET:
        return ParsedChunk(_read_parquet(piece))
    with csv_reader.collector_paused():
        found = csv_reader.read(file, piece.begin, None if piece.last else piece.end)
        made = assembled(file.signal, piece.rank, found.about, found.values) if found.number else None
    more = found.bad - len(found.named)
    return ParsedChunk(made, found.bad, (*found.named, *[(None, cannot_be_read(more))] * (more > 0)))


def _number_of_rows(path: Place) -> int:
    """Return the number of rows of a Parquet file."""
    with _duckdb(path) as connection:
        if wrong := misfit(connection, [path]):
            raise ValueError(wrong)
        query = "SELECT coalesce(sum(num_rows), 0) FROM parquet_file_metadata(?)"
        return int(connection.execute(query, [pattern_of(path)]).fetchone()[0])


def _read_parquet(piece: Chunk) -> MetricRows | None:
    """Return the rows of a piece of a Parquet file; None if there are none."""
    with _duckdb(piece.file.path) as connection:
        query = "SELECT * FROM read_parquet(?) LIMIT ? OFFSET ?"
        found = connection.execute(
            query, [pattern_of(piece.file.path), piece.end - piece.begin, piece.begin]
        ).fetchnumpy()
    if not len(found["step"]):
        return None
    about = {column: cells.tolist() for column, cells in found.items() if column in (*KEY, *TEXT)}
    values = {column: cells.astype(np.float64) for column, cells in found.items() if column not in about}
    return assembled(piece.file.signal, piece.rank, about, values)


@contextmanager
def _duckdb(path: Place) -> Iterator[Any]:
    """Open a connection for the file ``path``.

    Raises:
        ImportError: if DuckDB is missing.
        ValueError: if a query fails.
    """
    connection = connect(threads=1)
    import duckdb

    readable_by_duckdb(connection, path)
    try:
        yield connection
    except RuntimeError as error:
        if type(error) is RuntimeError:  # Ctrl-C during a query of DuckDB
            raise KeyboardInterrupt from error
        raise
    except duckdb.Error as error:
        if failed := failure_of(error, [path]):
            raise failed from None
        raise ValueError(f"expected a Parquet file; {' '.join(str(error).split())}") from error
    finally:
        connection.close()
