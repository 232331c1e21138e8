"""Rows of one run: read by DuckDB on demand, which can open the files of the run alone."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from probe.core.analysis.select_statement import restrict
from probe.core.language import invalid
from probe.core.storage.duckdb_reader import Connection, Rows, connect
from probe.core.storage.layout import PARQUET
from probe.core.storage.location import located, readable_by_duckdb
from probe.core.storage.problems import Problems
from probe.core.storage.sql import folder_of, quoted
from probe.core.storage.table_files import TableFile, misfit, parquet_columns, readable
from probe.view.run_files import GrowingFiles, RunListing

MEMORY = "160MB"
"""Memory that DuckDB may use for one run; sorting and grouping beyond it use files."""
LEAST_SECONDS = 0.4
"""Shortest time in seconds between two looks at the files of a run."""
SHARE = 20
"""A look that takes a second is followed by the next one after so many seconds: then it has 5 % of a processor."""
REMOTE_SECONDS = 30.0
"""Shortest time between two looks at a run in object storage, where each costs requests."""
REJECTED = ("reject_errors", "reject_scans")
"""Tables in which DuckDB keeps the lines that it could not read, of one query after the other."""


class RunReader:
    """Reader of one run; one thread at a time.

    Args:
        files: files of the run.
    """

    def __init__(self, files: GrowingFiles) -> None:
        self.lock = threading.RLock()
        self._files = files
        self._remote = not isinstance(located(files.place), Path)
        self.kept: dict[Any, Any] = {}
        """Results that are kept by who has made them, under keys of their own."""
        self._next_look = 0.0
        self._listing: RunListing | None = None
        self._connection: Connection | None = None
        self._folders: frozenset[str] = frozenset()
        self._whole: Rows | None = None
        self._whole_of: RunListing | None = None
        self._damaged = dict[Any, str]()
        self._columns: dict[Any, tuple[str, ...]] = {}
        """Columns of Parquet files."""
        self._line_problems = Problems()
        self._schemas = count()
        self._scratch = Path(tempfile.mkdtemp(prefix="probe-"))

    def close(self) -> None:
        """Release all resources."""
        with self.lock:
            self._drop_connection()
            shutil.rmtree(self._scratch, ignore_errors=True)

    def listing(self) -> RunListing:
        """Return the files of the run; they are looked at again if the last look is long enough ago.

        Raises:
            RunGone: if the run has been removed.
        """
        with self.lock:
            if self._listing is None or time.monotonic() >= self._next_look:
                began = time.monotonic()
                found = self._files.look()
                if self._listing is not None and found is not self._listing:
                    self._forget_changed(self._listing, found)
                self._listing = found
                least = REMOTE_SECONDS if self._remote else LEAST_SECONDS
                self._next_look = time.monotonic() + max(least, SHARE * (time.monotonic() - began))
            return self._listing

    def _forget_changed(self, before: RunListing, now: RunListing) -> None:
        """Forget what is known of files that have changed."""
        for path in {*self._columns, *self._damaged}:
            if before.stamps.get(path) != now.stamps.get(path):
                self._columns.pop(path, None)
                self._damaged.pop(path, None)

    @contextmanager
    def rows(
        self,
        signals: Collection[str],
        first: int | None = None,
        last: int | None = None,
        ranks: Collection[int] | None = None,
        files: Mapping[str, list[tuple[int, TableFile]]] | None = None,
    ) -> Iterator[Rows]:
        """Open the rows of some signals that may lie from step ``first`` to ``last``, and of some ranks; rows beside
        these may be there, too.

        Args:
            files: files that are read; None for those that the other arguments choose.

        Raises:
            RunGone: if the run has been removed.
            ValueError: if the files cannot be read.
        """
        import duckdb

        with self.lock:
            listing = self.listing()
            if listing.databases:
                yield self._opened_whole(listing)
                return
            chosen = files
            if chosen is None:
                chosen = {s: self._chosen(listing, s, first, last, ranks) for s in signals if s in listing.files}
            connection = self._connected(listing)
            kept = {signal: found for signal, own in chosen.items() if (found := self._described(connection, own))}
            schema = f"run_{next(self._schemas)}"
            try:
                with Rows(
                    listing.run.directories, self._line_problems, connection, schema, files=kept, scratch=self._scratch
                ) as rows:
                    yield rows
            except duckdb.Error as error:
                self._after_failure(kept, error)
            finally:
                if self._connection is not None:
                    connection.execute(f"DROP SCHEMA IF EXISTS {quoted(schema)} CASCADE")
                    for table in REJECTED:
                        connection.execute(f"DROP TABLE IF EXISTS {table}")

    def problems(self) -> list[str]:
        """Return the problems with files that are known, line by line."""
        with self.lock:
            found = Problems()
            if self._listing is not None:
                found.extend(self._listing.problems)
            found.extend(self._line_problems)
            for path, what in self._damaged.items():
                found.add(path, what)
            return found.lines()

    def _chosen(
        self, listing: RunListing, signal: str, first: int | None, last: int | None, ranks: Collection[int] | None
    ) -> list[tuple[int, TableFile]]:
        """Return the files of a signal that may have rows of some steps and ranks."""
        directories = listing.run.directories
        kept = []
        for n, file in listing.files[signal]:
            if last is not None and file.first > last:
                continue
            if first is not None and file.last < first:
                continue
            if ranks is not None and not _has_rank(file, directories[n].rank, ranks):
                continue
            kept.append((n, file))
        return kept

    def _described(self, connection: Connection, files: list[tuple[int, TableFile]]) -> list[tuple[int, TableFile]]:
        """Return the files that can be read, those of Parquet with their columns, which are looked up once."""
        new = [file.path for _, file in files if file.format == PARQUET and file.path not in self._columns]
        if new:
            self._look_up(connection, new)
        kept = [(n, file) for n, file in files if file.path not in self._damaged]
        return [
            (n, file._replace(columns=self._columns[file.path]) if file.format == PARQUET else file)
            for n, file in kept
            if file.format != PARQUET or file.path in self._columns
        ]

    def _look_up(self, connection: Connection, paths: list[Any]) -> None:
        """Look up the columns of Parquet files; files that are not of the monitor are left out from then on."""
        import duckdb

        try:
            wrong = misfit(connection, paths)
            if wrong is None:
                self._columns |= parquet_columns(connection, paths)
                return
        except duckdb.Error as error:
            wrong = f"expected a Parquet file, undamaged; {str(error).splitlines()[0][:200]}"
        if len(paths) == 1:
            self._damaged[paths[0]] = f"{wrong}: left out"
            return
        for path in paths:
            self._look_up(connection, [path])

    def _after_failure(self, files: Mapping[str, list[tuple[int, TableFile]]], error: Exception) -> None:
        """Leave out the damaged files that made a query fail.

        Raises:
            ValueError: always, with what to do.
        """
        self._next_look = 0.0
        every = [file for own in files.values() for _, file in own]
        if any(not file.path.exists() for file in every):
            raise invalid("a file of the run has been removed while it was read: ask again") from error
        problems = Problems()
        connection = self._connection
        if connection is not None:
            good = {file.path for file in readable(connection, every, problems)}
            for problem in problems.kept:
                if problem.path not in good:
                    self._damaged[problem.path] = problem.what
        first = str(error).splitlines()[0]
        raise invalid(
            "the files of the run cannot be read: {first}: ask again, damaged ones are left out", first=first
        ) from error

    def _connected(self, listing: RunListing) -> Connection:
        """Return a connection that can open the folders of the run alone."""
        folders = frozenset(
            folder_of(str(file.path)) or "." for files in listing.files.values() for _, file in files
        ) | _folders(listing)
        if self._connection is None or not folders <= self._folders:
            self._drop_connection()
            connection = connect(MEMORY)
            connection.execute("SET parquet_metadata_cache = true")  # DuckDB reads a footer again when its file changes
            for directory in listing.run.directories:
                readable_by_duckdb(connection, directory.path)
            restrict(connection, (), [*folders, self._scratch])
            self._connection, self._folders = connection, folders
        return self._connection

    def _opened_whole(self, listing: RunListing) -> Rows:
        """Return all rows of a run that has databases, which are copied as a whole."""
        if self._whole is None or self._whole_of is not listing:
            self._drop_connection()
            self._line_problems = Problems()
            self._whole = Rows(listing.run.directories, self._line_problems, connect(MEMORY), scratch=self._scratch)
            self._connection, self._whole_of = self._whole.connection, listing
            blocks = (file.path for own in self._whole.blocks.values() for _, file in own)
            restrict(self._whole.connection, blocks, [*_folders(listing), self._scratch])
        return self._whole

    def _drop_connection(self) -> None:
        if self._whole is not None:
            self._whole.close()
            self._whole = self._whole_of = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _folders(listing: RunListing) -> frozenset[str]:
    """Return the folders of the ranks, with files of other things than rows, too: their costs."""
    return frozenset(folder_of(str(directory.path / "_")) or "." for directory in listing.run.directories)


def _has_rank(file: TableFile, rank: int, ranks: Collection[int]) -> bool:
    if file.ranks is None:
        return rank in ranks
    low, high = file.ranks
    return any(low <= each <= high for each in ranks)
