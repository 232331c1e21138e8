"""Files of a packed run as DuckDB reads them: few and large ones, by step.

Whoever reads one rank after the other would read all of such a file for each: after a few ranks its rows are copied to
a table in the order of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from probe.core.language import invalid, message
from probe.core.storage.directories import RankDirectory
from probe.core.storage.location import Place, fetch_ahead
from probe.core.storage.packed.run import DIRECTORY, RANK, packed_files, packed_index, packed_source
from probe.core.storage.problems import Problems
from probe.core.storage.sql import listed, literal
from probe.core.storage.table_files import Files, TableFile

DIRECT = 2
"""Ranks that are read from a packed file itself; with the next one its rows are copied."""
SCHEMA = "by_rank"


class PackedListing:
    """Files of the directories of a packed run.

    Args:
        new_folder: makes a folder for copies, which its owner removes.
        files: packed files that were listed before; None for those of the index.
    """

    join = f"d.rank = f.{RANK} AND d.position = f.{DIRECTORY}"

    def __init__(
        self,
        connection: Any,
        directories: Sequence[RankDirectory],
        problems: Problems,
        new_folder: Callable[[], Path],
        files: Files | None = None,
    ) -> None:
        self._connection, self._directories, self._problems = connection, directories, problems
        self._new_folder = new_folder
        self.index = packed_index(directories[0].path.parent)
        self._numbers = {n: d.packed for n, d in enumerate(directories) if d.packed is not None}
        self._lost: set[Place] = set()
        self._asked: dict[Place, set[int]] = {}
        self._tables: dict[Place, str] = {}
        self.index.record_problems("opened", problems, set(self._numbers.values()))
        fetch_ahead(file.path for of_signal in (files or {}).values() for _, file in of_signal)
        self.blocks: Files = self._whole(packed_files(self.index, directories)) if files is None else files
        self.files: Files = _FilesOfRanks(self)

    def directories(self) -> Iterable[tuple[str | None, int, int]]:
        """Return path, which is none, index and position of the directories."""
        positions = self.index.directories["position"]
        return [(None, n, positions[number]) for n, number in self._numbers.items()]

    def files_of(self, signal: str, n: int) -> Sequence[TableFile]:
        """Return the files of a signal that a rank wrote in the directory of an index, in the order of steps."""
        return tuple(self.index.files_of(signal, self._numbers[n], self._lost)) if n in self._numbers else ()

    def pairs(self, signal: str) -> list[tuple[int, TableFile]]:
        """Return the files of a signal that ranks wrote, each with the index of its directory."""
        return [(n, file) for n in self._numbers for file in self.files_of(signal, n)]

    def source(self, files: Sequence[TableFile]) -> str:
        """Return the SQL that reads ``files`` of one directory in order, to be put after FROM."""
        return packed_source(files, self._by_rank)

    def numbers(self, signal: str, columns: Mapping[str, None]) -> list[str]:
        """Return ``columns`` of a signal in the order in which a reader of the run as it was has them."""
        first = [number for number in self.index.signals[signal].numbers if number in columns]
        return list(dict.fromkeys([*first, *columns]))

    def original(self, _: str, /) -> Place | None:
        """Return None: no packed file is a copy."""
        return None

    def folders(self) -> set[str]:
        """Return nothing: lines of packed files are whole."""
        return set()

    def close(self, problems: Problems) -> None:
        """Release all resources, and record the problems that the packed rows had."""
        self.index.record_problems("closed", problems, set(self._numbers.values()))
        if self._tables:
            self._connection.execute(f"DETACH {self._database}")

    def check(self, error: BaseException) -> None:
        """Raise ValueError with the damaged file, if an error of DuckDB may come from one. All files of the ranks are
        read for it, so an error of memory, after which a piece is halved, is left as it is."""
        import duckdb

        if not isinstance(error, duckdb.Error) or isinstance(error, duckdb.OutOfMemoryException):
            return
        ranks = [directory.rank for directory in self._directories]
        if path := next(self.index.damaged(min(ranks), max(ranks)), None):
            raise invalid(
                "{path}: expected the file as it was packed; it is damaged: pack the run again", path=path
            ) from error

    def _whole(self, files: Files) -> Files:
        """Return ``files`` without packed ones that are missing or have another size, which are recorded."""
        for of_signal in files.values():
            for _, file in of_signal:
                size = file.path.stat().st_size if file.path.is_file() else None
                if size != file.bytes:
                    trouble = message(
                        "expected {bytes} bytes, as the index says; there is none: left out"
                        if size is None
                        else "expected {bytes} bytes, as the index says; there are {size}: left out",
                        bytes=file.bytes,
                        size=size,
                    )
                    self._problems.add(file.path, trouble)
                    self._lost.add(file.path)
        whole = {
            signal: [pair for pair in of_signal if pair[1].path not in self._lost]
            for signal, of_signal in files.items()
        }
        return {signal: of_signal for signal, of_signal in whole.items() if of_signal}

    def _by_rank(self, path: Place, rank: int) -> str:
        """Return the SQL that reads the packed file ``path``, or a table with its rows of ``rank``, to be put after
        FROM; the rows of a rank come in the same order."""
        asked = self._asked.setdefault(path, set())
        asked.add(rank)
        if len(asked) > DIRECT and path not in self._tables:
            self._tables[path] = self._copied(path)
        return self._tables.get(path) or f"read_parquet({listed([path])})"

    @property
    def _database(self) -> str:
        return f"{SCHEMA}_{id(self)}"

    def _copied(self, path: Place) -> str:
        cursor = self._connection.cursor()
        if not self._tables:
            cursor.execute(f"ATTACH {literal(str(self._new_folder() / 'ranks.duckdb'))} AS {self._database}")
        table = f"{self._database}.packed_{len(self._tables)}"
        ranks = [directory.rank for directory in self._directories]
        read = f"read_parquet({listed([path])}, file_row_number = true)"
        condition = f"{RANK} BETWEEN {min(ranks)} AND {max(ranks)} ORDER BY {RANK}, file_row_number"
        cursor.execute(f"CREATE TABLE {table} AS SELECT * EXCLUDE (file_row_number) FROM {read} WHERE {condition}")  # noqa: S608 - no word is a user's
        return table


class _FilesOfRanks(Mapping[str, Sequence[tuple[int, TableFile]]]):
    """Files that ranks wrote, by signal; those of a signal are listed once, when they are asked for."""

    def __init__(self, listing: PackedListing) -> None:
        self._signals, self._pairs = listing.blocks, cache(listing.pairs)

    def __getitem__(self, signal: str) -> Sequence[tuple[int, TableFile]]:
        if signal not in self._signals:
            raise KeyError(signal)
        return self._pairs(signal)

    def __iter__(self) -> Iterator[str]:
        return iter(self._signals)

    def __len__(self) -> int:
        return len(self._signals)
