"""Files, or pieces of large ones, as rows; lines that cannot be read are named."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from probe.core.storage import csv_reader
from probe.core.storage.directories import RankDirectory
from probe.core.storage.duckdb_reader import connect
from probe.core.storage.layout import FORMATS, KEY, PARQUET, TEXT
from probe.core.storage.location import Location, Place, failure_of, readable_by_duckdb
from probe.core.storage.metric_rows import MetricRows, assembled
from probe.core.storage.packed.run import FILES_TABLE, PACKED, packed_index, packed_source
from probe.core.storage.problems import Problems, cannot_be_read
from probe.core.storage.sql import literal, pattern_of, quoted
from probe.core.storage.table_files import TableFile, misfit, tables

PIECE_ROWS = 100_000
"""Rows of a Parquet file that are read at a time."""


class Chunk(NamedTuple):
    """Part of a file: from byte ``begin`` to byte ``end`` of a CSV file, or rows of a Parquet file."""

    file: TableFile
    rank: int
    begin: int
    end: int
    before: int = 0
    """Number of lines before it, of a CSV file."""


class ParsedChunk(NamedTuple):
    """The rows of a piece."""

    rows: MetricRows | None
    bad: int = 0
    """Rows that were left out."""
    troubles: tuple[tuple[int | None, str], ...] = ()
    """The first of these rows: the line and its defect."""


def pieces(file: TableFile, rank: int) -> Iterator[Chunk]:
    """Yield the pieces of ``file``, in order; at least one.

    Raises:
        ImportError: if a Parquet file needs DuckDB, and that is missing.
        OSError: if the file cannot be read.
        ValueError: if a Parquet file is invalid.
    """
    if file.format not in (PACKED, PARQUET):
        spans = list(csv_reader.spans(file))
    else:
        size = _number_of_packed_rows(file) if file.format == PACKED else _number_of_rows(file.path)
        spans = [(begin, min(begin + PIECE_ROWS, size), 0) for begin in range(0, size, PIECE_ROWS)]
    yield from (Chunk(file, rank, *span) for span in spans or [(0, 0, 0)])


def parse(piece: Chunk) -> ParsedChunk:
    """Return the rows of ``piece``.

    Raises:
        ImportError: if a Parquet file needs DuckDB, and that is missing.
        OSError: if the file cannot be read.
        ValueError: if a Parquet file is invalid or has other columns than it must have.
    """
    file = piece.file
    if file.format in (PARQUET, PACKED):
        return ParsedChunk(_read_parquet(piece))
    with csv_reader.collector_paused():
        table = csv_reader.read(file, piece.begin, piece.end, piece.before)
        made = assembled(file.signal, piece.rank, table.about, table.values) if table.number else None
    more = table.bad - len(table.named)
    return ParsedChunk(made, table.bad, (*table.named, *[(None, cannot_be_read(more))] * (more > 0)))


def _number_of_rows(path: Place) -> int:
    """Return the number of rows of a Parquet file."""
    with _duckdb(path) as connection:
        if wrong := misfit(connection, [path]):
            raise ValueError(wrong)
        query = "SELECT coalesce(sum(num_rows), 0) FROM parquet_file_metadata(?)"
        return int(connection.execute(query, [pattern_of(path)]).fetchone()[0])


def _number_of_packed_rows(file: TableFile) -> int:
    if file.rows:
        return file.rows
    with _duckdb(file.path) as connection:
        return int(connection.execute(f"SELECT count(*) FROM {packed_source([file])}").fetchall()[0][0])  # noqa: S608


def files_in(directory: RankDirectory, problems: Problems) -> list[TableFile]:
    """Return every file of a rank's directory that can be read, by signal and step; of a packed run with the sizes and
    times that they had.

    Raises:
        ImportError: if DuckDB is missing and the run is packed.
        ValueError: if the packed run is damaged.
    """
    if directory.packed is None:
        return tables(directory.path, problems)
    root = directory.path.parent
    index = packed_index(root)
    for stage in ("opened", "closed"):
        index.record_problems(stage, problems, {directory.packed})
    query = "SELECT signal, file, size, modified_ns, rows FROM read_parquet(?) WHERE rank = ? AND directory = ?"
    position = index.directories["position"][directory.packed]
    with _duckdb(root / FILES_TABLE) as connection:
        records = connection.execute(query, [pattern_of(root / FILES_TABLE), directory.rank, position]).fetchall()
    described = {(signal, name): (size, modified_ns, rows) for signal, name, size, modified_ns, rows in records}
    files = []
    for signal in index.signals:
        for file in index.files_of(signal, directory.packed):
            if index.signals[signal].names[file.packed.name if file.packed else 0].format not in FORMATS:
                continue  # a database: nothing is converted from it
            size, modified_ns, rows = described[signal, file.packed.name if file.packed else 0]
            files.append(file._replace(bytes=size, modified_ns=modified_ns, rows=rows))
    return sorted(files, key=lambda file: (file.signal, file.first, file.part, file.path.name))


def _read_parquet(piece: Chunk) -> MetricRows | None:
    """Return the rows of a piece of a Parquet file; None if there are none."""
    with _duckdb(piece.file.packed.path if piece.file.packed else piece.file.path) as connection:
        cells, source = "*", f"read_parquet({literal(pattern_of(piece.file.path))})"
        if piece.file.format == PACKED:
            cells, source = ", ".join(map(quoted, piece.file.columns)), packed_source([piece.file])
        query = f"SELECT {cells} FROM {source} LIMIT ? OFFSET ?"  # noqa: S608 - names are quoted
        columns_of = connection.execute(query, [piece.end - piece.begin, piece.begin]).fetchnumpy()
    if not len(columns_of["step"]):
        return None
    described = {column: cells.tolist() for column, cells in columns_of.items() if column in (*KEY, *TEXT)}
    values = {column: cells.astype(np.float64) for column, cells in columns_of.items() if column not in described}
    return assembled(piece.file.signal, piece.rank, described, values)


@cache
def _database(process: int) -> Any:  # noqa: ARG001 - one that is forked has its own
    """Return the database of this process: to open one takes longer than to read a small file."""
    return connect(threads=1)


@contextmanager
def _duckdb(path: Place) -> Iterator[Any]:
    """Open a connection for the file ``path``.

    Raises:
        ImportError: if DuckDB is missing.
        ValueError: if a query fails.
    """
    connection = connect(threads=1) if isinstance(path, Location) else _database(os.getpid()).cursor()
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
