"""Files of ranks as DuckDB reads them: damaged ones are left out, rows of databases copied, lines mended."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from probe.core.storage import csv_reader, sqlite_reader
from probe.core.storage.directories import RankDirectory
from probe.core.storage.layout import CSV, KEY, table_name, type_of
from probe.core.storage.location import Location, Place, contents, fetch_ahead
from probe.core.storage.metrics_schema import FILE_NAMES
from probe.core.storage.problems import Problems
from probe.core.storage.sql import folder_of, listed, literal, quoted
from probe.core.storage.table_files import Files, FilesBySignal, TableFile, each_once, readable, tables

Connection = Any


class FileListing(FilesBySignal):
    """Files in directories of ranks.

    Args:
        new_folder: makes a folder for copies, which its owner removes.
        files: files that were listed before; None to look for them.
    """

    join = "d.path = parse_dirpath(f.filename)"
    """Condition of SQL for a row ``f`` of a file, and a row ``d`` of the table of directories."""

    def __init__(
        self,
        connection: Connection,
        directories: Sequence[RankDirectory],
        problems: Problems,
        new_folder: Callable[[], Path],
        files: Files | None = None,
    ) -> None:
        self._connection, self._directories, self._problems = connection, directories, problems
        self._root = cache(new_folder)
        self._originals: dict[str, Place] = {}
        self._folders = [(folder_of(str(d.path / "_")), n) for n, d in enumerate(directories)]
        if files is None:
            fetch_ahead(file for directory in directories for file in _objects(directory.path))
            super().__init__(self._listed())
        else:
            fetch_ahead(file.path for of_signal in files.values() for _, file in of_signal)
            super().__init__(
                {signal: [(n, self._mend(n, file)) for n, file in of_signal] for signal, of_signal in files.items()}
            )

    @property
    def blocks(self) -> Files:
        """Files that queries of all rows read."""
        return self.files

    def directories(self) -> Iterable[tuple[str | None, int, int]]:
        """Return path, index and position of the directories."""
        return [(path, n, 0) for path, n in self._folders]

    def source(self, files: Sequence[TableFile]) -> str:
        """Return the SQL that reads ``files`` of one directory in order, to be put after FROM."""
        return source(files)

    def numbers(self, _: str, columns: Mapping[str, None], /) -> list[str]:
        """Return ``columns`` of a signal in the order in which a reader of the files has them."""
        return list(columns)

    def original(self, path: str, /) -> Place | None:
        """Return the file of which ``path`` is a copy."""
        return self._originals.get(path)

    def folders(self) -> set[str]:
        """Return the folders of files and of their copies."""
        return {folder for folder, _ in self._folders}

    def close(self, problems: Problems) -> None:
        """Do nothing: the copies are in a folder of their owner."""

    def _listed(self) -> dict[str, list[tuple[int, TableFile]]]:
        files: dict[str, list[tuple[int, TableFile]]] = {}
        for n, directory in enumerate(self._directories):
            whole = readable(self._connection, tables(directory.path, self._problems), self._problems)
            for file in each_once(whole):
                files.setdefault(file.signal, []).append((n, self._mend(n, file)))
            for path in (directory.path / name for name in FILE_NAMES):
                if path.exists():
                    self._add_rows_of(path, n, files)
        return files

    def _mend(self, directory: int, file: TableFile) -> TableFile:
        """Return a copy without the lines that DuckDB cannot read; ``file`` itself if there are none."""
        if csv_reader.is_sound(file):
            return file
        copy = self._folder(directory) / file.path.name
        csv_reader.mend(file, copy, self._problems)
        self._originals[str(copy)] = file.path
        return file._replace(path=copy, torn=0)

    def _folder(self, directory: int) -> Path:
        """Return the folder with the copies of a directory's files; it is made if missing."""
        folder = self._root() / str(directory)
        if not folder.exists():
            folder.mkdir()
            self._folders.append((str(folder), directory))
        return folder

    def _add_rows_of(self, path: Place, n: int, files: dict[str, list[tuple[int, TableFile]]]) -> None:
        """Add the rows of a directory that only its database ``path`` holds."""
        folder, covered = self._folder(n), partial(self._covered, files, n)
        rank = self._directories[n].rank
        for file in sqlite_reader.copied(path, rank, folder, covered, self._copy, self._problems):
            self._originals[str(file.path)] = path
            files.setdefault(file.signal, []).append((n, file))
        for of_signal in files.values():
            of_signal.sort(key=lambda pair: (pair[0], pair[1].first))

    def _covered(self, all_files: Mapping[str, list[tuple[int, TableFile]]], n: int, signal: str) -> list[int]:
        """Return the steps of a signal in the files of a directory, and correct the first steps of these files."""
        files = all_files.get(signal, [])
        queries = [
            f"SELECT DISTINCT filename, step FROM {source} WHERE step IS NOT NULL"  # noqa: S608 - paths
            for _, source in grouped(self._connection, [file for of, file in files if of == n])
        ]
        records = self._connection.execute(" UNION ALL ".join(queries)).fetchall() if queries else []
        firsts: dict[str, int] = {}
        for path, step in records:
            firsts[path] = min(step, firsts.get(path, step))
        for at, (of, file) in enumerate(files):
            if str(file.path) in firsts:
                files[at] = (of, file._replace(first=firsts[str(file.path)]))
        return [step for _, step in records]

    def _copy(self, path: Path, cells: dict[str, sqlite_reader.Column]) -> None:
        """Write columns to a Parquet file.

        Raises:
            OSError: if it cannot be written.
        """
        import duckdb

        columns: dict[str, Any] = {}
        expressions = []
        for n, (name, (values, absent)) in enumerate(cells.items()):
            column = f"c{n}"
            columns[column] = values
            if absent is not None:  # DuckDB reads NaN in an array as a missing value
                columns[f"m{n}"] = absent
                column = f"CASE WHEN m{n} THEN NULL ELSE coalesce(c{n}, 'nan'::DOUBLE) END"
            expressions.append(f"{column} AS {quoted(name)}")
        try:
            with closing(self._connection.cursor()) as cursor:
                cursor.register("copied", columns)
                query = f"SELECT {', '.join(expressions)} FROM copied"  # noqa: S608 - names are quoted
                cursor.execute(f"COPY ({query}) TO {literal(str(path))} (FORMAT parquet)")
        except duckdb.Error as error:
            raise OSError(f"its rows cannot be copied to {path.parent}, which TMPDIR names: {error}") from error


def source(files: Sequence[TableFile]) -> str:
    """Return the SQL that reads CSV or Parquet files in order, to be put after FROM; all have the same format and
    columns."""
    paths = listed([file.path for file in files])
    if files[0].format != CSV:
        same = all(file.columns for file in files)
        return f"read_parquet({paths}, union_by_name = {str(not same).lower()}, filename = true)"
    keys = [column for column in files[0].columns if column in KEY]
    types = ", ".join(f"{literal(column)}: {literal(type_of(column))}" for column in files[0].columns)
    table = (
        f"read_csv({paths}, columns = {{{types}}}, header = true, auto_detect = false, delim = ',', quote = '\"', "
        f"escape = '\"', force_not_null = [{', '.join(map(literal, keys))}], filename = true, store_rejects = true)"
    )
    all_keys = " AND ".join(f"{key} IS NOT NULL" for key in keys)  # read in any case: DuckDB counts what it reads
    return f"(SELECT * FROM {table} WHERE {all_keys})"  # noqa: S608 - our own words


def columns_of(connection: Connection, source: str) -> tuple[str, ...]:
    """Return the columns of a source."""
    described = connection.execute(f"DESCRIBE SELECT * FROM {source}").fetchall()  # noqa: S608 - our own words
    return tuple(row[0] for row in described if row[0] != "filename")


def grouped(
    connection: Connection, files: Iterable[TableFile], source_of: Any = source
) -> list[tuple[tuple[str, ...], str]]:
    """Group files of equal columns; return the columns of each group, and the SQL that reads it."""
    groups: dict[tuple[str, tuple[str, ...]], list[TableFile]] = {}
    for file in files:
        groups.setdefault((file.format, file.columns), []).append(file)
    sources = [(columns, source_of(group)) for (_, columns), group in groups.items()]
    return [(columns or columns_of(connection, source), source) for columns, source in sources]


def with_ends(files: Iterable[tuple[int, TableFile]]) -> Iterator[tuple[int, TableFile, float]]:
    """Yield files with the steps before which they end: that at which the directory's next begins, or the one after
    the last that may be in it (a next file with other columns may begin within its steps)."""
    firsts: dict[int, set[int]] = {}
    pairs = list(files)
    for n, file in pairs:
        firsts.setdefault(n, set()).add(file.first)
    after = {n: dict(pairwise(sorted(steps))) for n, steps in firsts.items()}
    for n, file in pairs:
        end = max(after[n].get(file.first, math.inf), file.last + 1)
        yield n, file, end if file.ranks is None else file.last + 1


def _objects(folder: Place) -> list[Place]:
    """Return the tables in ``folder`` if it is in object storage; none for a path."""
    return [entry for entry in contents(folder) if table_name(entry.name)] if isinstance(folder, Location) else []
