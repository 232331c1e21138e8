"""One file of a packed run, written from the files of some ranks; :mod:`pack` chooses which and makes the index."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from probe.core.storage.directories import RankDirectory
from probe.core.storage.duckdb_reader import MEMORY, Rows, connect, fill
from probe.core.storage.files import moved, replacing
from probe.core.storage.layout import CSV, KEY, NEEDED, TEXT, type_of
from probe.core.storage.manifest import Manifest
from probe.core.storage.packed.run import DIRECTORY, FILE, RANK, digest
from probe.core.storage.problems import Problem, Problems
from probe.core.storage.sql import literal, quoted
from probe.core.storage.table_files import TableFile, readable

ROW_GROUP = 122_880
"""Rows of a row group: the unit in which readers skip rows by their statistics."""
SEALS = ".packing"
"""Folder of the records of finished files, from which an interrupted pack goes on."""


class Source(NamedTuple):
    """A file that is packed."""

    file: TableFile
    original: Path
    """The file of the rank; ``file`` may be a copy of rows of it."""
    directory: int
    """Number of the directory."""
    rank: int
    position: int
    """Position of the directory among those of the rank."""
    until: int | None
    """The step from which rows are left out, since a resume replaced them."""
    name: int
    """Number of the file's name."""
    size: int
    modified_ns: int


class BlockWork(NamedTuple):
    """A file that is to be written."""

    out: Path
    """Folder of the packed run."""
    path: str
    """Path in it."""
    signal: str
    ranks: tuple[int, int]
    sources: tuple[Source, ...]
    """By rank, position of the directory, then in the order of steps."""
    memory: str = MEMORY

    @property
    def mark(self) -> str:
        """Text that is another one if any source is another one."""
        described = [
            (str(part.original), *part.file[1:5], part.size, part.modified_ns, part.until, part.position, part.name)
            for part in self.sources
        ]
        return hashlib.sha256(json.dumps([self.path, described]).encode()).hexdigest()

    @property
    def seal(self) -> Path:
        """The record of the finished file."""
        return self.out / SEALS / f"{hashlib.sha256(self.path.encode()).hexdigest()[:32]}.json"


class PackedSource(NamedTuple):
    """Rows of one file that were packed."""

    source: int
    """Index among the sources."""
    columns: tuple[str, ...]
    rows: int
    """Rows that were packed."""


class Sealed(NamedTuple):
    """The record of a finished file."""

    mark: str
    path: str
    steps: tuple[int, int] | None
    """None if no source can be read: then there is no file."""
    rows: int
    bytes: int
    sha256: str
    columns: tuple[str, ...]
    packed: tuple[PackedSource, ...]
    opened: tuple[Problem, ...]
    """Problems found as files were opened."""
    closed: tuple[Problem, ...]
    """Problems found as rows were read."""


def write_block(work: BlockWork) -> Sealed:
    """Write one file, unless it is finished; return its record.

    Raises:
        OSError: if it cannot be written.
        duckdb.Error: if rows cannot be read or sorted.
    """
    sealed_before = _read_seal(work)
    if sealed_before is not None:
        return sealed_before
    path = work.out / work.path
    path.parent.mkdir(parents=True, exist_ok=True)
    with moved(path) as temporary:
        made = _write(work, temporary)
        if made.steps is not None:
            made = made._replace(bytes=temporary.stat().st_size, sha256=digest(temporary))
    if made.steps is None:
        with suppress(OSError):
            path.unlink(missing_ok=True)
    work.seal.parent.mkdir(exist_ok=True)
    with replacing(work.seal) as file:
        json.dump(made, file, default=str)
    return made


def _read_seal(work: BlockWork) -> Sealed | None:
    """Return the record of the finished file; None if it is to be written (again)."""
    try:
        fields: list[Any] = json.loads(work.seal.read_text(encoding="utf-8"))
        mark, path, steps, rows, size, sha256, columns, packed, *problems = fields
        present = (work.out / work.path).stat().st_size if steps else 0
    except (OSError, ValueError):
        return None
    if mark != work.mark or path != work.path or present != size:
        return None
    opened, closed = (tuple(Problem(Path(p), line, text, skip) for p, line, text, skip in some) for some in problems)
    of = tuple(PackedSource(source, tuple(cells), number) for source, cells, number in packed)
    return Sealed(mark, path, tuple(steps) if steps else None, rows, size, sha256, tuple(columns), of, opened, closed)


def _write(work: BlockWork, path: Path) -> Sealed:
    opened, closed = Problems(), Problems()
    connection = connect(work.memory, threads=1)  # with more of them the bytes could be others
    try:
        sources = _readable(connection, work.sources, opened)
        directories = [RankDirectory(s.file.path.parent, s.rank, "", 0.0, Manifest(), 0, s.until) for s in sources]
        files = {work.signal: [(n, source.file) for n, source in enumerate(sources)]}
        if not sources:
            return Sealed(work.mark, work.path, None, 0, 0, "", (), (), tuple(opened.kept), ())
        with Rows(directories, opened, connection, "packing", files=files) as rows:
            rows.problems = closed
            mended = [file for _, file in rows.files[work.signal]]
            columns = _gather(rows, sources, mended)
            packed, steps = _counted(connection, work.sources, sources, columns)
            every = _ordered([part.columns for part in packed])
            _copy(connection, every, path, len({(file.format, file.columns) for file in mended}) == 1)
        number = sum(part.rows for part in packed)
        return Sealed(work.mark, work.path, steps, number, 0, "", every, packed, tuple(opened.kept), tuple(closed.kept))
    finally:
        connection.close()


def _readable(connection: Any, sources: Sequence[Source], problems: Problems) -> list[Source]:
    """Return the sources without damaged Parquet files, which are recorded."""
    sound: list[Source] = []
    by_directory: dict[int, list[Source]] = {}
    for source in sources:
        by_directory.setdefault(source.directory, []).append(source)
    for of_directory in by_directory.values():
        good = {id(file) for file in readable(connection, [source.file for source in of_directory], problems)}
        sound += [source for source in of_directory if id(source.file) in good]
    return sound


def _gather(rows: Rows, sources: Sequence[Source], files: Sequence[TableFile]) -> list[tuple[str, ...]]:
    """Read all rows into the table ``gathered``; return the columns of each source.

    Args:
        files: the files that DuckDB reads for the sources.
    """
    connection = rows.connection
    alike: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    for n, file in enumerate(files):
        alike.setdefault((file.format, file.columns), []).append(n)
    groups = {tuple(numbers): rows.source([files[n] for n in numbers]) for numbers in alike.values()}
    columns = [files[n].columns for n in range(len(files))]
    for numbers in groups:
        for n in numbers:  # a Parquet file has its columns in itself
            columns[n] = columns[n] or rows.columns(rows.source([files[n]]))
    every = _ordered(columns)
    fields = {"path": "VARCHAR", **dict.fromkeys(("source", "of_rank", "of_directory", "of_name"), "INTEGER")}
    places = [
        (str(file.path), n, s.rank, s.position, s.name, s.until)
        for n, (file, s) in enumerate(zip(files, sources, strict=True))
    ]
    fields["until"] = "BIGINT"
    fill(connection, "sources", fields, places)
    only_text = all(file.format == CSV for file in files)
    parts = []
    for numbers, source in groups.items():
        present = set().union(*(columns[n] for n in numbers))
        cells = ", ".join(_cell(column, column in present, only_text) for column in every)
        parts.append(
            f"SELECT s.source, s.of_rank, s.of_directory, s.of_name, f.place, {cells} "  # noqa: S608 - quoted
            f"FROM (SELECT *, row_number() OVER () AS place FROM {source}) AS f "
            "JOIN sources AS s ON s.path = f.filename WHERE s.until IS NULL OR f.step < s.until"
        )
    connection.execute(f"CREATE OR REPLACE TEMP TABLE gathered AS {' UNION ALL '.join(parts)}")
    return columns


def _ordered(columns: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return all columns: those that every table has, then the others as they come first."""
    every = dict.fromkeys(column for of_file in dict.fromkeys(columns) for column in of_file)
    first = [column for column in NEEDED if column in every]
    return tuple(dict.fromkeys([*first, *every]))


def _cell(column: str, is_present: bool, only_text: bool) -> str:
    kind = "BIGINT" if column in KEY and column not in TEXT and not only_text else type_of(column)
    value = f"f.{quoted(column)}" if is_present else "NULL"
    return f"CAST({value} AS {kind}) AS {quoted(column)}"


def _counted(
    connection: Any, every: Sequence[Source], readable: Sequence[Source], columns: Sequence[tuple[str, ...]]
) -> tuple[tuple[PackedSource, ...], tuple[int, int]]:
    """Return what was read of each source, and the first and the last step."""
    counts = dict(connection.execute("SELECT source, count(*) FROM gathered GROUP BY source").fetchall())
    places = {id(source): n for n, source in enumerate(every)}
    packed = tuple(
        PackedSource(places[id(source)], tuple(columns[n]), counts.get(n, 0)) for n, source in enumerate(readable)
    )
    low, high = connection.execute("SELECT min(step), max(step) FROM gathered").fetchall()[0]
    return packed, (0, -1) if low is None else (int(low), int(high))


_BACK = "step < lag(step) OVER {w} AND of_rank = lag(of_rank) OVER {w} AND of_directory = lag(of_directory) OVER {w}"
"""Condition of a row whose step is before that of the row that its rank wrote before it."""


def _copy(connection: Any, columns: Sequence[str], path: Path, in_order: bool) -> None:
    """Write the rows to ``path``.

    Args:
        in_order: True if the table has the rows in the order of sources: then no window has to be sorted.
    """
    back = _BACK.format(w="()" if in_order else "(ORDER BY source, place)")
    query = f"SELECT count(*) FROM (SELECT {back} AS back FROM gathered) WHERE back"  # noqa: S608 - our own words
    descends = connection.execute(query).fetchall()[0][0]
    order = "of_rank, of_directory, source, place" if descends else "step, of_rank, of_directory, source, place"
    cells = ", ".join(quoted(column) for column in columns)
    query = (
        f"SELECT of_rank AS {RANK}, of_directory AS {DIRECTORY}, of_name AS {FILE}, {cells} "  # noqa: S608 - quoted
        f"FROM gathered ORDER BY {order}"
    )
    connection.execute(
        f"COPY ({query}) TO {literal(str(path))} (FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE {ROW_GROUP})"
    )
