"""Check of Parquet files before DuckDB reads many of them: a query ends at the first one that it cannot read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from probe.core.storage.layout import KEY, MOST_COLUMNS, NEEDED, TEXT
from probe.core.storage.location import Place
from probe.core.storage.problems import Problems
from probe.core.storage.sql import listed
from probe.core.storage.table_files import TableFile

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
            problems.add(file.path, f"{wrong}: left out")
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
        return f"expected a Parquet file, undamaged; {str(error).splitlines()[0][:200]}"
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
        return f"expected the columns {', '.join(NEEDED)}; there is no {', '.join(missing)}"
    if len(names) > MOST_COLUMNS:
        return f"expected at most {MOST_COLUMNS} columns; there are {len(names)}"
    for name, kind, children in columns:
        expected = ("BYTE_ARRAY",) if name in TEXT else _WHOLE if name in KEY else _NUMBERS
        if children or kind not in expected:
            return f"expected {' or '.join(expected)} in column {name}; there is {kind or 'a structure'}"
    return None
