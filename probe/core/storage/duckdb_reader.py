"""Files of any number of ranks as one table a signal, read by DuckDB; Parquet files are checked first."""

from __future__ import annotations

import math
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from probe.core.errors import missing
from probe.core.storage import csv_reader, sqlite_reader
from probe.core.storage.directories import RankDirectory
from probe.core.storage.layout import (
    CALL,
    CSV,
    FORM,
    KEY,
    MICRO_STEP,
    STEP,
    is_number,
    table_name,
    type_of,
)
from probe.core.storage.location import Location, Place, contents, failure_of, fetch_ahead, located, readable_by_duckdb
from probe.core.storage.metrics_schema import FILE_NAMES
from probe.core.storage.packed_run import (
    DIRECTORY,
    PACKED,
    RANK,
    PackedFiles,
    PackedIndex,
    packed_files,
    packed_index,
    packed_source,
)
from probe.core.storage.parquet_check import readable
from probe.core.storage.problems import NAMED, Problems, cannot_be_read, left_out
from probe.core.storage.rows_by_rank import RowsByRank
from probe.core.storage.sql import folder_of, listed, literal, quoted
from probe.core.storage.table_files import TableFile, each_once, tables

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


Files = list[tuple[int, TableFile]]
"""Files of a signal, each with the index of its directory."""


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
        files: files by signal, each with the index of its directory in ``directories``, of a packed run with that of
            the first directory of which it has rows; no directory is listed then. None to look for them.
        scratch: folder for copies, which its owner removes; None for the system's.
    """

    def __init__(
        self,
        directories: Sequence[RankDirectory],
        problems: Problems,
        connection: Connection | None = None,
        schema: str = "main",
        left_out: Mapping[str, str] | None = None,
        files: Mapping[str, Sequence[tuple[int, TableFile]]] | None = None,
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
        unpacked = [directory.path for directory in self.directories if directory.packed is None]
        fetch_ahead(file for folder in unpacked for file in _objects(folder) if files is None)
        fetch_ahead(file.path for own in (files or {}).values() for _, file in own)
        self._mended = tempfile.TemporaryDirectory(prefix="probe-", dir=scratch)
        ranks = [directory.rank for directory in self.directories] or [0]
        self._by_rank = RowsByRank(self.connection, Path(self._mended.name), (min(ranks), max(ranks)))
        self._originals: dict[str, Place] = {}
        self._places: list[tuple[str, int]] = [
            (folder_of(str(d.path / "_")), n) for n, d in enumerate(self.directories) if d.packed is None
        ]
        self.files: Mapping[str, Sequence[tuple[int, TableFile]]]
        """Files by signal, each with the index of its directory, in the order of directory and step; of a packed run
        the files that ranks wrote."""
        self._lost: set[Place] = set()
        self._blocks: Mapping[str, Sequence[tuple[int, TableFile]]] = {}
        self._packed = self._open_packed(files)
        if self._packed is None:
            self.files = self._looked() if files is None else self._known(files)
        self._by_directory: dict[str, dict[int, list[TableFile]]] = {}
        self._numbers: dict[str, tuple[str, ...]] = {}
        self._ends: dict[str, list[tuple[TableFile, float]]] = {}
        self._list_directories()

    def __enter__(self) -> Rows:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self.close()
        if failed := failure_of(error, (directory.path for directory in self.directories)):
            raise failed from None
        if self._packed is not None and error is not None:
            self._name_damaged(self._packed, error)

    def _name_damaged(self, index: PackedIndex, error: BaseException) -> None:
        """Raise ValueError with the damaged file, if an error of DuckDB may come from one. All files of the ranks are
        read for it, so an error of memory, after which a piece is halved, is left as it is."""
        import duckdb

        if not isinstance(error, duckdb.Error) or isinstance(error, duckdb.OutOfMemoryException):
            return
        ranks = [directory.rank for directory in self.directories]
        if path := next(index.damaged(min(ranks), max(ranks)), None):
            raise ValueError(
                f"{path}: expected the file as it was packed; it is damaged: pack the run again"
            ) from error

    @property
    def signals(self) -> tuple[str, ...]:
        return tuple(self.files)

    @property
    def blocks(self) -> Mapping[str, Sequence[tuple[int, TableFile]]]:
        """Files that queries of all rows read: ``files``, but of a packed run its own few and large ones, each with the
        index of the first directory of which it has rows."""
        return self.files if self._packed is None else self._blocks

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
            if self._packed is not None:
                known = [number for number in self._packed.signals[signal].numbers if number in numbers]
                numbers = dict.fromkeys([*known, *numbers])
            self._numbers[signal] = tuple(numbers)
            self.connection.execute(f"CREATE VIEW {name} AS {self._chosen(signal, self._union(groups, numbers))}")
        return name

    def between(self, signal: str, first: int, last: int) -> str:
        """Return SQL for the steps from ``first`` to ``last`` of the signal's view, to be put after FROM; it reads only
        files that may hold them.

        Raises:
            KeyError: if there is no file of the signal.
        """
        self.view(signal)
        if self._packed is None:
            files = [file for file, end in self._spans(signal) if file.first <= last and first < end]
        else:
            files = [file for _, file in self.blocks[signal] if file.first <= last and first <= file.last]
        if not files:
            return f"(SELECT * FROM {self.view(signal)} LIMIT 0)"  # noqa: S608 - no word is a user's
        read = self._chosen(signal, self._union(self._groups(files), self._numbers[signal]))
        return f"(SELECT * FROM ({read}) WHERE step BETWEEN {first} AND {last})"  # noqa: S608 - no word is a user's

    def read(
        self, files: Sequence[TableFile], first: int | None, last: int | None
    ) -> tuple[tuple[str, ...], Iterator[tuple[Any, ...]]]:
        """Return the columns of ``files``, which are alike, and the rows from step ``first`` to ``last``, in order."""
        packed = files[0].format == PACKED
        source = packed_source(files, self._by_rank.source) if packed else self.source(files)
        columns = files[0].columns or self.columns(source)
        conditions = [f"step >= {first}"] * (first is not None) + [f"step <= {last}"] * (last is not None)
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        return columns, self._fetched(f"SELECT {', '.join(map(quoted, columns))} FROM {source}{where}")  # noqa: S608

    def _fetched(self, query: str) -> Iterator[tuple[Any, ...]]:
        with closing(self.connection.cursor()) as cursor:
            cursor.execute(query)
            try:
                while found := cursor.fetchmany(AT_ONCE):
                    yield from found
            finally:
                if not self._closed:
                    self._record_rejected(cursor)  # a cursor has temporary tables of its own

    def source(self, files: Sequence[TableFile]) -> str:
        """Return the SQL that reads ``files`` in order, to be put after FROM; all have the same format and columns."""
        if files[0].format == PACKED:
            return packed_source(files)
        paths = listed([file.path for file in files])
        if files[0].format != CSV:
            same = all(file.columns for file in files)
            return f"read_parquet({paths}, union_by_name = {str(not same).lower()}, filename = true)"
        keys = ", ".join(literal(column) for column in files[0].columns if column in KEY)
        types = ", ".join(f"{literal(column)}: {literal(type_of(column))}" for column in files[0].columns)
        return (
            f"read_csv({paths}, columns = {{{types}}}, header = true, auto_detect = false, "
            f"delim = ',', quote = '\"', escape = '\"', force_not_null = [{keys}], filename = true, "
            "store_rejects = true)"
        )

    def close(self) -> None:
        """Record the lines that were left out, and release all resources."""
        self._closed = True
        self.record_rejected()
        if self._packed is not None:
            self._packed.record_problems("closed", self.problems, self._numbers_of_directories())
        self._by_rank.close()
        self._mended.cleanup()
        if self._owned:
            self.connection.close()

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
        own = {path for path, _ in self._places}
        rejected = connection.execute(_REJECTED).fetchall()
        for path, line, wrong, after, place, lines in rejected:
            if folder_of(path) not in own:  # of another object that shares the connection
                continue
            where = self._originals.get(path) or located(path)
            if place <= NAMED:
                self.problems.add(where, f"{' '.join(wrong.split())}: {left_out(after)}", line)
            elif place == NAMED + 1:
                self.problems.add(where, cannot_be_read(lines - NAMED))

    def _groups(self, files: Iterable[TableFile]) -> list[tuple[tuple[str, ...], str]]:
        """Group files of equal columns; return the columns of each group, and the SQL that reads it."""
        groups: dict[tuple[str, tuple[str, ...]], list[TableFile]] = {}
        for file in files:
            groups.setdefault((file.format, file.columns), []).append(file)
        read = [(columns, self.source(group)) for (_, columns), group in groups.items()]
        return [(columns or self.columns(source), source) for columns, source in read]

    def _spans(self, signal: str) -> list[tuple[TableFile, float]]:
        if signal not in self._ends:
            self._ends[signal] = list(_with_ends(self.files[signal]))
        return self._ends[signal]

    def _chosen(self, signal: str, query: str) -> str:
        """Return ``query`` without the rows that are left out."""
        condition = self._left_out.get(signal)
        return f"SELECT * FROM ({query}) WHERE NOT ({condition})" if condition else query  # noqa: S608 - our own words

    def _union(self, groups: Iterable[tuple[tuple[str, ...], str]], numbers: Iterable[str]) -> str:
        return " UNION ALL ".join(self._select(columns, read, numbers) for columns, read in groups)

    def columns(self, source: str) -> tuple[str, ...]:
        """Return the columns of a source."""
        described = self.connection.execute(f"DESCRIBE SELECT * FROM {source}").fetchall()  # noqa: S608 - our own words
        return tuple(row[0] for row in described if row[0] != "filename")

    def _select(self, columns: Sequence[str], source: str, numbers: Iterable[str]) -> str:
        def cell(column: str, otherwise: str) -> str:
            return f"{quoted(column)}" if column in columns else f"{otherwise} AS {quoted(column)}"

        fixed = {MICRO_STEP: cell(MICRO_STEP, "0"), CALL: cell(CALL, "0"), STEP: f"{STEP}::BIGINT AS {STEP}"}
        own = "d.path = parse_dirpath(f.filename)"
        if self._packed is not None:
            fixed |= {key: f"coalesce({key}, 0) AS {key}" for key in (MICRO_STEP, CALL) if key in columns}
            own = f"d.rank = f.{RANK} AND d.position = f.{DIRECTORY}"
        cells = [fixed.get(column, quoted(column)) for column in KEY]
        cells += [cell(column, "NULL::VARCHAR") for column in FORM]
        cells += [cell(column, "NULL::DOUBLE") for column in numbers]
        return (
            f"SELECT d.rank, d.directory, {', '.join(cells)} FROM {source} AS f "  # noqa: S608 - no word is a user's
            f"JOIN {self._schema}.directories AS d ON {own} "
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
        about: list[tuple[str | None, int, int]] = [(path, n, 0) for path, n in self._places]
        if self._packed is not None:
            positions = self._packed.directories["position"]
            packed = [(n, d.packed) for n, d in enumerate(self.directories) if d.packed is not None]
            about += [(None, n, positions[number]) for n, number in packed]
        own = self.directories
        listed = [(path, n, own[n].rank, own[n].until, position) for path, n, position in about]
        fill(self.connection, f"{self._schema}.directories", columns, listed)

    def _mend(self, directory: int, file: TableFile) -> TableFile:
        """Return a copy without the lines that DuckDB cannot read; ``file`` itself if there are none."""
        if csv_reader.is_sound(file):
            return file
        copy = self._folder(directory) / file.path.name
        csv_reader.mend(file, copy, self.problems)
        self._originals[str(copy)] = file.path
        return file._replace(path=copy, torn=0)

    def _folder(self, directory: int) -> Path:
        """Return the folder with the copies of a directory's files; it is made if missing."""
        folder = Path(self._mended.name) / str(directory)
        if not folder.exists():
            folder.mkdir()
            self._places.append((str(folder), directory))
        return folder

    def original(self, file: TableFile) -> Place:
        """Return the file that a rank has written; ``file`` may be a copy of it."""
        return self._originals.get(str(file.path), file.path)

    def files_of(self, signal: str, n: int) -> Sequence[TableFile]:
        """Return the files of a signal in the directory of an index, in the order of steps; of a packed run those that
        the rank wrote there."""
        if self._packed is not None:
            number = self.directories[n].packed
            return tuple(self._packed.files_of(signal, number, self._lost)) if number is not None else ()
        if signal not in self._by_directory:
            own = self._by_directory[signal] = {}
            for of, file in self.files.get(signal, ()):
                own.setdefault(of, []).append(file)
        return self._by_directory[signal].get(n, ())

    def _open_packed(self, files: Mapping[str, Sequence[tuple[int, TableFile]]] | None) -> PackedIndex | None:
        """Return the index of the packed run, if the directories are of one."""
        if not any(directory.packed is not None for directory in self.directories):
            return None
        index = packed_index(self.directories[0].path.parent)
        index.record_problems("opened", self.problems, self._numbers_of_directories())
        if files is None:
            files = self._whole(packed_files(index, self.directories))
        self._blocks = files
        self.files = {signal: PackedFiles(index, signal, self.directories, self._lost) for signal in files}
        return index

    def _whole(self, files: Mapping[str, Sequence[tuple[int, TableFile]]]) -> dict[str, Files]:
        """Return ``files`` without packed ones that are missing or have another size, which are recorded."""
        for own in files.values():
            for _, file in own:
                size = file.path.stat().st_size if file.path.is_file() else None
                if size != file.bytes:
                    there = "there is none" if size is None else f"there are {size}"
                    self.problems.add(file.path, f"expected {file.bytes} bytes, as the index says; {there}: left out")
                    self._lost.add(file.path)
        kept = {signal: [pair for pair in own if pair[1].path not in self._lost] for signal, own in files.items()}
        return {signal: own for signal, own in kept.items() if own}

    def _numbers_of_directories(self) -> set[int]:
        return {directory.packed for directory in self.directories if directory.packed is not None}

    def _known(self, files: Mapping[str, Sequence[tuple[int, TableFile]]]) -> Mapping[str, Files]:
        """Return files that were found before, those of text as DuckDB reads them."""
        return {signal: [(n, self._mend(n, file)) for n, file in own] for signal, own in files.items()}

    def _looked(self) -> dict[str, Files]:
        """Return the files in the directories."""
        found: dict[str, Files] = {}
        for n, directory in enumerate(self.directories):
            for file in each_once(readable(self.connection, tables(directory.path, self.problems), self.problems)):
                found.setdefault(file.signal, []).append((n, self._mend(n, file)))
            self._add_database(n, found)
        return found

    def _add_database(self, n: int, found: dict[str, Files]) -> None:
        """Add the rows of a directory that only its databases hold."""
        for name in FILE_NAMES:
            path = self.directories[n].path / name
            if path.exists():
                self._add_rows_of(path, n, found)

    def _add_rows_of(self, path: Place, n: int, found: dict[str, Files]) -> None:
        folder, covered = self._folder(n), partial(self._covered, found, n)
        for file in sqlite_reader.copied(path, self.directories[n].rank, folder, covered, self._copy, self.problems):
            self._originals[str(file.path)] = path
            found.setdefault(file.signal, []).append((n, file))
        for files in found.values():
            files.sort(key=lambda pair: (pair[0], pair[1].first))

    def _covered(self, all_files: Mapping[str, Files], n: int, signal: str) -> list[int]:
        """Return the steps of a signal in the files of a directory, and correct the first steps of these files."""
        files = all_files.get(signal, [])
        queries = [
            f"SELECT DISTINCT filename, step FROM {source} WHERE step IS NOT NULL"  # noqa: S608 - paths
            for _, source in self._groups([file for of, file in files if of == n])
        ]
        found = self.connection.execute(" UNION ALL ".join(queries)).fetchall() if queries else []
        firsts: dict[str, int] = {}
        for path, step in found:
            firsts[path] = min(step, firsts.get(path, step))
        for at, (of, file) in enumerate(files):
            if str(file.path) in firsts:
                files[at] = (of, file._replace(first=firsts[str(file.path)]))
        return [step for _, step in found]

    def _copy(self, path: Path, cells: dict[str, sqlite_reader.Column]) -> None:
        """Write columns to a Parquet file.

        Raises:
            OSError: if it cannot be written.
        """
        import duckdb

        columns: dict[str, Any] = {}
        chosen = []
        for n, (name, (values, absent)) in enumerate(cells.items()):
            column = f"c{n}"
            columns[column] = values
            if absent is not None:  # DuckDB reads NaN in an array as a missing value
                columns[f"m{n}"] = absent
                column = f"CASE WHEN m{n} THEN NULL ELSE coalesce(c{n}, 'nan'::DOUBLE) END"
            chosen.append(f"{column} AS {quoted(name)}")
        try:
            with closing(self.connection.cursor()) as cursor:
                cursor.register("copied", columns)
                what = f"SELECT {', '.join(chosen)} FROM copied"  # noqa: S608 - names are quoted
                cursor.execute(f"COPY ({what}) TO {literal(str(path))} (FORMAT parquet)")
        except duckdb.Error as error:
            raise OSError(f"its rows cannot be copied to {path.parent}, which TMPDIR names: {error}") from error


def _objects(folder: Place) -> list[Place]:
    """Return the tables in ``folder`` if it is in object storage; none for a path."""
    return [each for each in contents(folder) if table_name(each.name)] if isinstance(folder, Location) else []


def _with_ends(files: Iterable[tuple[int, TableFile]]) -> Iterator[tuple[TableFile, float]]:
    """Yield the files (ordered by directory and step), each with its end: the step at which the next begins, or the one
    after the last that may be in it (a next file with other columns may begin within its steps)."""
    for _, own in groupby(files, key=lambda pair: pair[0]):
        alike = [list(group) for _, group in groupby((file for _, file in own), key=lambda file: file.first)]
        for group, after in zip(alike, [*alike[1:], None], strict=True):
            yield from ((file, max(after[0].first, file.last + 1) if after else math.inf) for file in group)


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
