"""Tables of a packed run besides its rows: facts about each file that was packed, costs of the monitor, and texts
that lay beside the files."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from probe.core.storage.directories import RankDirectory
from probe.core.storage.duckdb_reader import connect
from probe.core.storage.files import MOST_JSON, moved, opened
from probe.core.storage.layout import COST_COLUMNS, COSTS, UPDATE_COLUMNS, table_name
from probe.core.storage.location import on_disk
from probe.core.storage.manifest import FILE as MANIFEST
from probe.core.storage.metrics_schema import FILE_NAMES
from probe.core.storage.packed.blocks import BlockWork, Sealed
from probe.core.storage.packed.run import FILES_TABLE, TEXTS_TABLE
from probe.core.storage.side_files import PACKED_COSTS, costs_source
from probe.core.storage.sql import literal

_TABLES = {
    FILES_TABLE: (
        "rank INTEGER, directory INTEGER, signal VARCHAR, file INTEGER, size BIGINT, modified_ns BIGINT, rows BIGINT",
        "rank, directory, signal, file",
    ),
    PACKED_COSTS: (
        "rank INTEGER, directory INTEGER, "
        + ", ".join(f"{name} {kind}" for name, kind in (COST_COLUMNS | UPDATE_COLUMNS).items()),
        "rank, directory, rowid",
    ),
    TEXTS_TABLE: ("rank INTEGER, directory INTEGER, name VARCHAR, content BLOB", "rank, directory, name"),
}
"""Columns and order of each table, by the name of its file."""


class SideTables:
    """Tables that grow while a run is packed, beyond the limit of memory in files of DuckDB.

    Use as a context manager.
    """

    def __init__(self) -> None:
        self._connection = connect(threads=1)
        for name, (columns, _) in _TABLES.items():
            self._connection.execute(f"CREATE TABLE {_table(name)} ({columns})")

    def __enter__(self) -> SideTables:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def add_files(self, work: BlockWork, sealed: Sealed) -> None:
        """Add the files that were packed into one."""
        sources = [(work.sources[part.source], part.rows) for part in sealed.packed]
        cells: list[list[Any]] = [
            [source.rank for source, _ in sources],
            [source.position for source, _ in sources],
            [work.signal] * len(sources),
            [source.name for source, _ in sources],
            [source.size for source, _ in sources],
            [source.modified_ns for source, _ in sources],
            [rows for _, rows in sources],
        ]
        kinds = ("INTEGER", "INTEGER", "VARCHAR", "INTEGER", "BIGINT", "BIGINT", "BIGINT")
        values = ", ".join(f"unnest(?::{kind}[])" for kind in kinds)
        self._connection.execute(f"INSERT INTO {_table(FILES_TABLE)} SELECT {values}", cells)

    def add_directories(self, directories: Sequence[tuple[RankDirectory, int]]) -> None:
        """Add the costs and texts in directories, each with its position among those of its rank."""
        paths: dict[str, tuple[int, int]] = {}
        for directory, position in directories:
            for path in sorted(on_disk(directory.path).iterdir()):
                if _is_text(path):
                    self._add_text(path, directory.rank, position)
                if path.name == COSTS and path.is_file():
                    paths[str(path)] = (directory.rank, position)
        if not paths:
            return
        values = ", ".join(f"({literal(path)}, {rank}, {position})" for path, (rank, position) in paths.items())
        self._connection.execute(
            f"INSERT INTO {_table(PACKED_COSTS)} SELECT f.rank, f.directory, c.* EXCLUDE (filename) "  # noqa: S608
            f"FROM {costs_source(list(map(Path, paths)))} AS c "
            f"JOIN (VALUES {values}) AS f(path, rank, directory) ON f.path = c.filename"
        )

    def _add_text(self, path: Path, rank: int, position: int) -> None:
        with suppress(OSError), opened(path) as file:
            content = file.read(MOST_JSON + 1)
            if len(content) <= MOST_JSON:
                row = [rank, position, path.name, content]
                self._connection.execute(f"INSERT INTO {_table(TEXTS_TABLE)} VALUES (?, ?, ?, ?)", row)  # noqa: S608

    def write(self, out: Path) -> dict[str, int]:
        """Write the tables that have rows, and remove older ones that have none; return their sizes by name."""
        sizes: dict[str, int] = {}
        for name, (_, order) in _TABLES.items():
            number = self._connection.execute(f"SELECT count(*) FROM {_table(name)}").fetchall()[0][0]  # noqa: S608
            if not number:
                (out / name).unlink(missing_ok=True)
                continue
            query = f"SELECT * FROM {_table(name)} ORDER BY {order}"  # noqa: S608 - our own words
            with moved(out / name) as path:
                self._connection.execute(f"COPY ({query}) TO {literal(str(path))} (FORMAT parquet, COMPRESSION zstd)")
                sizes[name] = path.stat().st_size
        return sizes


def _table(name: str) -> str:
    return name.partition(".")[0]


def _is_text(path: Path) -> bool:
    """Return whether a file of a rank's directory is kept as it is."""
    is_other = path.name == MANIFEST or table_name(path.name) is not None or path.name in FILE_NAMES
    return not is_other and not path.name.startswith(".") and path.is_file()
