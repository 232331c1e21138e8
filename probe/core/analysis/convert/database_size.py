"""Size of a database before it is written: a run that SQLite cannot hold in reason is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from probe.core.analysis.convert.select import Chosen
from probe.core.storage.chunks import files_in
from probe.core.storage.files import opened
from probe.core.storage.layout import CSV, table_name
from probe.core.storage.location import Place
from probe.core.storage.problems import Problems

MOST_ROWS = 500_000_000
"""Rows of a database at most: about an hour of conversion and 50 GB, and the indices as much again."""
MOST_BYTES = 100 * 10**9
"""Bytes of the files that are converted, at most."""
SAMPLE = 1 << 16
"""Bytes of a CSV file from which the length of its lines is estimated."""
PARQUET_ROW = 40
"""Bytes of a row in Parquet files of monitored ranks, compressed, about."""


class ExpectedSize(NamedTuple):
    """Estimate of the rows of some files, from their sizes and a sample of one file of each kind."""

    files: int
    bytes: int
    rows: int


def expected_size(choice: Chosen) -> ExpectedSize:
    """Estimate the size of a conversion; no more than one file of each kind is opened."""
    lengths: dict[str, float] = {}
    number = total = 0
    rows = 0.0
    for kind, format_, path, size, known_rows in _files(choice):
        number, total = number + 1, total + size
        if known_rows or format_ != CSV:
            rows += known_rows or size / PARQUET_ROW
            continue
        if kind not in lengths and (length := _line_length(path)):
            lengths[kind] = length
        rows += size / lengths.get(kind, PARQUET_ROW)
    return ExpectedSize(number, total, int(rows))


def check_size(root: Place, choice: Chosen) -> None:
    """Check that a database can hold the chosen files.

    Raises:
        ValueError: if it cannot, with the limit and the alternatives.
    """
    size = expected_size(choice)
    if size.rows <= MOST_ROWS and size.bytes <= MOST_BYTES:
        return
    raise ValueError(
        f"{root}: expected at most {MOST_ROWS:,} rows and {MOST_BYTES / 1e9:,.0f} GB of files for a SQLite database; "
        f"there are about {size.rows:,} rows in {size.files:,} files of {size.bytes / 1e9:,.1f} GB: choose some "
        "with --data-type-list, --time-start and --time-end, or write few large Parquet files with `probe pack` and "
        "query the run as it is with `probe sql`"
    )


def _files(choice: Chosen) -> Iterator[tuple[str, str, Place, int, int]]:
    """Yield kind, format, path, size and rows (0 if unknown) of each chosen file."""
    for directory in choice.directories:
        if directory.packed is not None:
            for file in files_in(directory, Problems()):
                if file.signal in choice.kinds:
                    yield file.signal, file.format, file.path, file.bytes, file.rows
            continue
        for path in directory.path.iterdir():
            name = table_name(path.name)
            if name and not path.name.startswith(".") and name.signal in choice.kinds:
                with suppress(OSError):  # the conversion names it
                    yield name.signal, name.format, path, path.stat().st_size, 0


def _line_length(path: Place) -> float:
    """Return the mean length of the first lines; 0 if there are none."""
    try:
        with opened(path) as file:
            sample = file.read(SAMPLE)
    except (OSError, ValueError):  # the conversion names it
        return 0.0
    lines = sample.count(b"\n")
    return len(sample) / lines if lines > 1 else 0.0
