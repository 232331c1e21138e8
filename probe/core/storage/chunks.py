"""One file, or a piece of a large one, as rows; what cannot be read is told by its line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from probe.core.storage import csv_chunks, parquet_chunks
from probe.core.storage.metric_rows import MetricRows
from probe.core.storage.table_files import TableFile

PIECE_BYTES = 1 << 20
"""Of a CSV file that are read at a time."""
PIECE_ROWS = 100_000
"""Of a Parquet file that are read at a time."""


class Chunk(NamedTuple):
    """Part of a file: from byte ``begin`` to byte ``end`` of a CSV file, or rows of a Parquet file."""

    file: TableFile
    rank: int
    begin: int
    end: int
    last: bool
    """Whether no other piece of the file follows."""


class ParsedChunk(NamedTuple):
    """What a piece holds."""

    rows: MetricRows | None
    bad: int = 0
    """Lines that were left out."""
    troubles: tuple[tuple[int | None, str], ...] = ()
    """The first of them: the line, and what is wrong with it."""


def pieces(file: TableFile, rank: int, size: int) -> Iterator[Chunk]:
    """The pieces of ``file``, in order; at least one.

    Args:
        size: of the file, in bytes.

    Raises:
        ImportError: if a Parquet file needs DuckDB, and that is missing.
        ValueError: if a Parquet file is none.
    """
    if file.format == "parquet":
        size, step = parquet_chunks.number_of_rows(file.path), PIECE_ROWS
    else:
        size, step = size - file.torn, PIECE_BYTES
    for begin in range(0, max(1, size), step):
        end = min(begin + step, size)
        yield Chunk(file, rank, begin, end, end == size)


def parse(piece: Chunk) -> ParsedChunk:
    """The rows of ``piece``.

    Raises:
        ImportError: if a Parquet file needs DuckDB, and that is missing.
        OSError: if the file cannot be read.
        ValueError: if a Parquet file is none or has other columns than it must.
    """
    file = piece.file
    if file.format == "parquet":
        return ParsedChunk(parquet_chunks.read(file, piece.rank, piece.begin, piece.end))
    return ParsedChunk(*csv_chunks.read(file, piece.rank, piece.begin, None if piece.last else piece.end, file.torn))
