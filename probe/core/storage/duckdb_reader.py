"""Files of any number of ranks as one table a signal, read by DuckDB."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from probe.core.errors import missing
from probe.core.language import message
from probe.core.storage.directories import RankDirectory
from probe.core.storage.layout import CALL, FORM, KEY, MICRO_STEP, STEP, is_number
from probe.core.storage.listing import FileListing, columns_of, grouped, source, with_ends
from probe.core.storage.location import Place, failure_of, located, readable_by_duckdb
from probe.core.storage.packed.listing import PackedListing
from probe.core.storage.packed.run import PACKED, packed_source
from probe.core.storage.problems import NAMED, Problems, cannot_be_read, left_out
from probe.core.storage.sql import folder_of, quoted
from probe.core.storage.table_files import Files, TableFile

Connection = Any

MEMORY = "512MB"
"""Memory that DuckDB may use; sorting and grouping beyond it use files."""
AT_ONCE = 20_000
"""Rows that are held at a time."""


def connect(memory: str = MEMORY, threads: int | None = None) -> Connection:
    """Open a database in memory for reading files.

    Raises:
        ImportError: if DuckDB is missing.
    """
    try:
        import duckdb
    except ImportError as absent:
        raise ImportError(missing("reading many files", "duckdb", "analysis")) from absent
    connection = duckdb.connect(":memory:")
    connection.execute(f"SET memory_limit = '{memory}'")
    spill = Path(tempfile.gettempdir()) / f"probe-{uuid.uuid4().hex}"  # made, and removed, by DuckDB if it is needed
    connection.execute("SET temp_directory = ?", [str(spill)])
    connection.execute("SET enable_progress_bar = false")  # it would be drawn into the output of a command
    if threads:
        connection.execute(f"SET threads = {threads}")
    return connection


def fill(connection: Connection, table: str, columns: Mapping[str, str], rows: Iterable[Sequence[object]]) -> None:
    """Make ``table``, in place of one of the same name, with ``rows``.

    Args:
        columns: names with their SQL types.
    """
    named = ", ".join(f"{quoted(name)} {kind}" for name, kind in columns.items())
    connection.execute(f"CREATE OR REPLACE TABLE {table} ({named})")
    cells = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in columns]
    values = ", ".join(f"unnest(?::{kind}[])" for kind in columns.values())
    connection.execute(f"INSERT INTO {table} SELECT {values}", cells)


Listing = FileListing | PackedListing


class Rows:
    """One view a signal over all rows in ``directories``.

    Each view has the columns ``rank, directory`` (index in ``directories``), ``vpp_stage, name, step, micro_step, call,
    shape, dtype, coverage``, and a DOUBLE column for each number that any of the files has (NULL if a file lacks it).
    ``micro_step`` and ``call`` are 0 if the files lack them. Steps that were done again after a resume appear once.

    Use as a context manager: lines that could not be read are recorded in ``problems`` at the end.

    Args:
        connection: a shared connection, which its owner closes; None for an own one.
        schema: schema of the views in the database, so that it can hold several runs.
        left_out: for some signals an SQL condition of the rows that are left out of views.
        files: files that were listed before (:attr:`blocks`); None to look for them.
        scratch: folder for copies, which its owner removes; None for the system's.
    """

    def __init__(
        self,
        directories: Sequence[RankDirectory],
        problems: Problems,
        connection: Connection | None = None,
        schema: str = "main",
        left_out: Mapping[str, str] | None = None,
        files: Files | None = None,
        scratch: Path | None = None,
    ) -> None:
        self._left_out = left_out or {}
        self.connection = connection or connect()
        self._owned, self._closed = connection is None, False
        self._schema = quoted(schema)
        self.directories = tuple(directories)
        self.problems = problems
        for directory in self.directories:
            readable_by_duckdb(self.connection, directory.path)
        self._scratch, self._copies = scratch, ExitStack()
        kind = PackedListing if any(directory.packed is not None for directory in directories) else FileListing
        self.listing: Listing = kind(self.connection, self.directories, problems, self._new_folder, files)
        self._numbers: dict[str, tuple[str, ...]] = {}
        self._ends: dict[str, list[tuple[int, TableFile, float]]] = {}
        self._list_directories()

    def __enter__(self) -> Rows:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self.close()
        if failed := failure_of(error, (directory.path for directory in self.directories)):
            raise failed from None
        if isinstance(self.listing, PackedListing) and error is not None:
            self.listing.check(error)

    @property
    def files(self) -> Files:
        """Files that ranks wrote, each with the index of its directory, in the order of directory and step."""
        return self.listing.files

    @property
    def blocks(self) -> Files:
        """Files that queries of all rows read: ``files``, but of a packed run its own few and large ones, each with the
        index of the first directory of which it has rows."""
        return self.listing.blocks

    @property
    def signals(self) -> tuple[str, ...]:
        return tuple(self.files)

    def files_of(self, signal: str, n: int) -> Sequence[TableFile]:
        """Return the files of a signal in the directory of an index, in the order of steps; of a packed run those that
        the rank wrote there."""
        return self.listing.files_of(signal, n)

    def original(self, file: TableFile) -> Place:
        """Return the file that a rank has written; ``file`` may be a copy of it."""
        return self.listing.original(str(file.path)) or file.path

    def source(self, files: Sequence[TableFile]) -> str:
        """Return the SQL that reads ``files`` in order, to be put after FROM; all have the same format and columns."""
        return packed_source(files) if files[0].format == PACKED else source(files)

    def columns(self, source: str) -> tuple[str, ...]:
        """Return the columns of a source."""
        return columns_of(self.connection, source)

    def numbers(self, signal: str) -> tuple[str, ...]:
        """Return the ops and other numbers of a signal, in the order of their columns."""
        self.view(signal)
        return self._numbers[signal]

    def view(self, signal: str) -> str:
        """Return the name of the signal's view, to be put after FROM.

        Raises:
            KeyError: if there is no file of the signal.
        """
        name = f"{self._schema}.{quoted(f'rows {signal}')}"
        if signal not in self._numbers:
            groups = self._groups([file for _, file in self.blocks[signal]])
            numbers = dict.fromkeys(column for columns, _ in groups for column in columns if is_number(column))
            self._numbers[signal] = tuple(self.listing.numbers(signal, numbers))
            self.connection.execute(f"CREATE VIEW {name} AS {self._query(signal, groups)}")
        return name

    def between(self, signal: str, first: int, last: int) -> str:
        """Return SQL for the steps from ``first`` to ``last`` of the signal's view, to be put after FROM; it reads only
        files that may hold them.

        Raises:
            KeyError: if there is no file of the signal.
        """
        view = self.view(signal)
        if signal not in self._ends:
            self._ends[signal] = list(with_ends(self.blocks[signal]))
        files = [file for _, file, end in self._ends[signal] if file.first <= last and first < end]
        if not files:
            return f"(SELECT * FROM {view} LIMIT 0)"  # noqa: S608 - no word is a user's
        query = self._query(signal, self._groups(files))
        return f"(SELECT * FROM ({query}) WHERE step BETWEEN {first} AND {last})"  # noqa: S608 - no word is a user's

    def read(
        self, files: Sequence[TableFile], first: int | None, last: int | None
    ) -> tuple[tuple[str, ...], Iterator[tuple[Any, ...]]]:
        """Return the columns of ``files``, which are alike, and the rows from step ``first`` to ``last``, in order."""
        source = self.listing.source(files)
        columns = files[0].columns or self.columns(source)
        conditions = [f"step >= {first}"] * (first is not None) + [f"step <= {last}"] * (last is not None)
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        return columns, self._fetched(f"SELECT {', '.join(map(quoted, columns))} FROM {source}{where}")  # noqa: S608

    def _fetched(self, query: str) -> Iterator[tuple[Any, ...]]:
        with closing(self.connection.cursor()) as cursor:
            cursor.execute(query)
            try:
                while rows := cursor.fetchmany(AT_ONCE):
                    yield from rows
            finally:
                if not self._closed:
                    self._record_rejected(cursor)  # a cursor has temporary tables of its own

    def close(self) -> None:
        """Record the lines that were left out, and release all resources."""
        self._closed = True
        self.record_rejected()
        self.listing.close(self.problems)
        self._copies.close()
        if self._owned:
            self.connection.close()

    def _new_folder(self) -> Path:
        folder = tempfile.TemporaryDirectory(prefix="probe-", dir=self._scratch)
        return Path(self._copies.enter_context(folder))

    def record_rejected(self) -> None:
        """Record the lines that the queries so far could not read."""
        self._record_rejected(self.connection)

    def _record_rejected(self, connection: Connection) -> None:
        import duckdb

        try:
            if not connection.execute("SELECT 1 FROM reject_errors LIMIT 1").fetchall():
                return
        except duckdb.CatalogException:  # no query has read text yet
            return
        folders = self.listing.folders()  # files of others that share a connection are left to these
        for path, line, wrong, after, place, lines in connection.execute(_REJECTED).fetchall():
            if folder_of(path) not in folders:
                continue
            where = self.listing.original(path) or located(path)
            if place <= NAMED:
                self.problems.add(
                    where, message("{error}: {result}", error=" ".join(wrong.split()), result=left_out(after)), line
                )
            elif place == NAMED + 1:
                self.problems.add(where, cannot_be_read(lines - NAMED))

    def _groups(self, files: Iterable[TableFile]) -> list[tuple[tuple[str, ...], str]]:
        return grouped(self.connection, files, self.source)

    def _query(self, signal: str, groups: Iterable[tuple[tuple[str, ...], str]]) -> str:
        """Return the query of all rows of ``groups``, without those that are left out."""
        query = " UNION ALL ".join(self._select(columns, source, self._numbers[signal]) for columns, source in groups)
        condition = self._left_out.get(signal)
        return f"SELECT * FROM ({query}) WHERE NOT ({condition})" if condition else query  # noqa: S608 - our own words

    def _select(self, columns: Sequence[str], source: str, numbers: Iterable[str]) -> str:
        def cell(column: str, otherwise: str) -> str:
            return f"{quoted(column)}" if column in columns else f"{otherwise} AS {quoted(column)}"

        fixed = {MICRO_STEP: cell(MICRO_STEP, "0"), CALL: cell(CALL, "0"), STEP: f"{STEP}::BIGINT AS {STEP}"}
        if isinstance(self.listing, PackedListing):
            fixed |= {key: f"coalesce({key}, 0) AS {key}" for key in (MICRO_STEP, CALL) if key in columns}
        cells = [fixed.get(column, quoted(column)) for column in KEY]
        cells += [cell(column, "NULL::VARCHAR") for column in FORM]
        cells += [cell(column, "NULL::DOUBLE") for column in numbers]
        return (
            f"SELECT d.rank, d.directory, {', '.join(cells)} FROM {source} AS f "  # noqa: S608 - no word is a user's
            f"JOIN {self._schema}.directories AS d ON {self.listing.join} "
            "WHERE d.until IS NULL OR f.step < d.until"
        )

    def _list_directories(self) -> None:
        self.connection.execute(f"CREATE SCHEMA IF NOT EXISTS {self._schema}")
        columns = {
            "path": "VARCHAR",
            "directory": "INTEGER",
            "rank": "INTEGER",
            "until": "BIGINT",
            "position": "INTEGER",
        }
        cells = [
            (path, n, self.directories[n].rank, self.directories[n].until, position)
            for path, n, position in self.listing.directories()
        ]
        fill(self.connection, f"{self._schema}.directories", columns, cells)


_REJECTED = f"""
WITH lines AS (
    SELECT DISTINCT ON (s.file_path, e.line) s.file_path AS path, e.line AS line, e.error_message AS what,
        len(string_split(rtrim(e.csv_line, chr(10) || chr(13)), chr(10))) - 1 AS after
    FROM reject_errors AS e JOIN reject_scans AS s USING (scan_id, file_id) ORDER BY s.file_path, e.line, e.column_idx),
numbered AS (
    SELECT *, row_number() OVER (PARTITION BY path ORDER BY line) AS place, count(*) OVER (PARTITION BY path) AS lines
    FROM lines)
SELECT path, line, what, after, place, lines FROM numbered WHERE place <= {NAMED + 1} ORDER BY path, line
"""  # noqa: S608 - no word of it is a user's
