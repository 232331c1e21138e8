"""Files, or pieces of large ones, as rows; lines that cannot be read are named."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from probe.core.storage import csv_reader, parquet_chunks
from probe.core.storage.csv_reader import PIECE_BYTES
from probe.core.storage.layout import PARQUET
from probe.core.storage.metric_rows import MetricRows, assembled
from probe.core.storage.problems import cannot_be_read
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
        size, step = parquet_chunks.number_of_rows(file.path), PIECE_ROWS
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
        return ParsedChunk(parquet_chunks.read(file, piece.rank, piece.begin, piece.end))
    with csv_reader.collector_paused():
        found = csv_reader.read(file, piece.begin, None if piece.last else piece.end)
        made = assembled(file.signal, piece.rank, found.about, found.values) if found.number else None
    more = found.bad - len(found.named)
    return ParsedChunk(made, found.bad, (*found.named, *[(None, cannot_be_read(more))] * (more > 0)))
