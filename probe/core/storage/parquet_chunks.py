"""Parquet files, read some rows at a time by DuckDB."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from probe.core.storage.duckdb_reader import connect
from probe.core.storage.layout import KEY, TEXT
from probe.core.storage.metric_rows import MetricRows, assembled
from probe.core.storage.parquet_check import misfit
from probe.core.storage.sql import pattern_of
from probe.core.storage.table_files import TableFile


def number_of_rows(path: Path) -> int:
    """Return the number of rows in ``path``.

    Raises:
        ImportError: if DuckDB is missing.
        ValueError: if it is no Parquet file, or not one of ours.
    """
    with _duckdb() as connection:
        if wrong := misfit(connection, [path]):
            raise ValueError(wrong)
        query = "SELECT coalesce(sum(num_rows), 0) FROM parquet_file_metadata(?)"
        return int(connection.execute(query, [pattern_of(path)]).fetchone()[0])


def read(file: TableFile, rank: int, begin: int, end: int) -> MetricRows | None:
    """Return rows ``begin`` to ``end - 1``; None if there are none.

    Raises:
        ImportError: if DuckDB is missing.
        ValueError: if it is no Parquet file, or not one of ours.
    """
    with _duckdb() as connection:
        query = "SELECT * FROM read_parquet(?) LIMIT ? OFFSET ?"
        found = connection.execute(query, [pattern_of(file.path), end - begin, begin]).fetchnumpy()
    if not len(found["step"]):
        return None
    about = {column: cells.tolist() for column, cells in found.items() if column in (*KEY, *TEXT)}
    values = {column: cells.astype(np.float64) for column, cells in found.items() if column not in about}
    return assembled(file.signal, rank, about, values)


@contextmanager
def _duckdb() -> Iterator[Any]:
    """Open a connection for one file.

    Raises:
        ImportError: if DuckDB is missing.
        ValueError: if a query fails.
    """
    connection = connect(threads=1)
    import duckdb

    try:
        yield connection
    except RuntimeError as error:
        if type(error) is RuntimeError:  # Ctrl-C during a query of DuckDB
            raise KeyboardInterrupt from error
        raise
    except duckdb.Error as error:
        raise ValueError(f"expected a Parquet file; {' '.join(str(error).split())}") from error
    finally:
        connection.close()
