"""Rows of packed files in the order of ranks.

A packed file holds its rows by step, so that whoever reads one rank after the other would read all of it for each.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from probe.core.storage.location import Place
from probe.core.storage.packed_run import RANK
from probe.core.storage.sql import listed, literal

DIRECT = 2
"""Ranks that are read from a packed file itself; with the next one its rows are copied."""
SCHEMA = "by_rank"


class RowsByRank:
    """Tables with the rows of packed files, rank after rank, in a database on the disk.

    Args:
        connection: database that reads them.
        folder: where they are written; its owner removes it.
        ranks: first and last rank of which rows are copied.
    """

    def __init__(self, connection: Any, folder: Path, ranks: tuple[int, int]) -> None:
        self._connection, self._folder, self._span = connection, folder, ranks
        self._asked: dict[Place, set[int]] = {}
        self._tables: dict[Place, str] = {}

    def source(self, path: Place, rank: int) -> str:
        """Return the SQL that reads the packed file ``path``, or a table with its rows of ``rank``, to be put after
        FROM; the rows of a rank come in the same order."""
        asked = self._asked.setdefault(path, set())
        asked.add(rank)
        if len(asked) > DIRECT and path not in self._tables:
            self._tables[path] = self._copied(path)
        return self._tables.get(path) or f"read_parquet({listed([path])})"

    def close(self) -> None:
        """Let go of the tables."""
        if self._tables:
            self._connection.execute(f"DETACH {self._database}")

    @property
    def _database(self) -> str:
        return f"{SCHEMA}_{id(self)}"

    def _copied(self, path: Place) -> str:
        cursor = self._connection.cursor()
        if not self._tables:
            cursor.execute(f"ATTACH {literal(str(self._folder / 'ranks.duckdb'))} AS {self._database}")
        table = f"{self._database}.packed_{len(self._tables)}"
        first, last = self._span
        read = f"read_parquet({listed([path])}, file_row_number = true)"
        chosen = f"{RANK} BETWEEN {first} AND {last} ORDER BY {RANK}, file_row_number"
        cursor.execute(f"CREATE TABLE {table} AS SELECT * EXCLUDE (file_row_number) FROM {read} WHERE {chosen}")  # noqa: S608 - no word is a user's
        return table
