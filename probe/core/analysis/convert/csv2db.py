"""Conversion of the files of all ranks to one SQLite database."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import groupby
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import numpy as np

from probe.core.analysis.convert.select import (
    Chosen,
    ConversionUnit,
    Observer,
    checked_folder,
    checked_kinds,
    checked_number,
    checked_place,
    choose,
    output_folder,
)
from probe.core.analysis.engines.workers import WorkersDiedError, in_order
from probe.core.language import Message, message
from probe.core.messages import counted, plural
from probe.core.storage.batches import record_twice
from probe.core.storage.chunks import Chunk, ParsedChunk, files_in, parse, pieces
from probe.core.storage.directories import RankDirectory
from probe.core.storage.files import opened
from probe.core.storage.layout import CSV, table_name
from probe.core.storage.location import Location, Place
from probe.core.storage.metric_rows import MetricRows
from probe.core.storage.metrics_db import MetricsDatabase
from probe.core.storage.metrics_schema import FILE_NAME
from probe.core.storage.problems import Problems
from probe.core.storage.table_files import TableFile, size_and_time

logger = logging.getLogger("probe.convert")

MOST_PROCESSES = 128
MOST_STEPS = 10_000_000
MOST_ROWS = 500_000_000
"""Rows of a database at most: about an hour of conversion and 50 GB, and the indices as much again."""
MOST_BYTES = 100 * 10**9
"""Bytes of the files that are converted, at most."""
SAMPLE = 1 << 16
"""Bytes of a CSV file from which the length of its lines is estimated."""
PARQUET_ROW = 40
"""Bytes of a row in Parquet files of monitored ranks, compressed, about."""


@dataclass(frozen=True)
class CSV2DBConfig:
    """The source and the target of a conversion.

    Raises:
        ValueError: if a value is not of its field's kind.
    """

    monitor_path: str | PathLike[str] | Location
    """The directory in which the ranks have written, or its URL; ``~`` is the home directory."""
    time_start: str | None = None
    """Earliest directory, such as ``Dec03_21-34-40``, itself included; None for no limit."""
    time_end: str | None = None
    """Latest directory, itself included; None for no limit."""
    process_num: int = 1
    """Processes that read; one more writes, unless it is 1."""
    data_type_list: Sequence[str] | None = None
    """Kinds, by the prefix of their files; None for all."""
    step_partition: int | None = None
    """Steps in one table; None for the number of the database that is continued, 500 in a new one."""
    output_dirpath: str | PathLike[str] | None = None
    """Folder of the database; None for ``{curtime}_csv2db`` in ``monitor_path``. A database in the folder is continued:
    files that it holds already are not read again."""

    def __post_init__(self) -> None:
        checked_place("monitor_path", self.monitor_path)
        if self.output_dirpath is not None:
            checked_folder("output_dirpath", self.output_dirpath)
        checked_number("process_num", self.process_num, 1, MOST_PROCESSES)
        if self.step_partition is not None:
            checked_number("step_partition", self.step_partition, 1, MOST_STEPS)
        checked_kinds(self.data_type_list)


@dataclass
class Imported:
    """The result of a conversion."""

    path: Path
    """The database."""
    problems: Problems = field(default_factory=Problems)
    rows: int = 0
    """Rows; one that is in a CSV and in a Parquet file of a directory counts once."""
    files: int = 0
    known: int = 0
    """Files that the database held already."""

    @property
    def summary(self) -> Message:
        """One line for people."""
        if not self.files + self.known:
            return message("nothing could be converted: {path} was not written", path=self.path)
        earlier = plural(self.known, ", {known} was there already", ", {known} were there already")
        return message(
            "{rows} of {files} in {path}{there}",
            rows=counted(self.rows, "row"),
            files=counted(self.files, "file"),
            path=self.path,
            there=message(earlier, known=self.known) if self.known else "",
        )


class _Work(NamedTuple):
    """A file to be imported."""

    directory: RankDirectory
    file: TableFile
    size: int
    modified_ns: int
    afresh: bool
    """True if the rows that the database holds of this rank and kind are removed first."""
    twice: bool
    """True if the directory has files of this kind as CSV and as Parquet."""

    @property
    def name(self) -> str:
        """Name under which the database records the file; it stays valid if the run is moved."""
        return f"{self.directory.path.name}/{self.file.path.name}"


def csv2db(config: CSV2DBConfig) -> Imported:
    """Convert the CSV and Parquet files of a run to ``monitor_metrics.db``.

    A file that cannot be read is left out and logged at WARNING. The summary is logged at INFO.

    Raises:
        TypeError: if ``config`` is no :class:`CSV2DBConfig`.
    """
    if not isinstance(config, CSV2DBConfig):
        advice = 'write csv2db(CSV2DBConfig(monitor_path="monitor_output"))'
        raise TypeError(f"csv2db: config: expected a CSV2DBConfig, got {type(config).__name__}; {advice}")
    done = convert(config)
    for line in done.problems.lines():
        logger.warning("%s", line)
    logger.info("%s", done.summary)
    return done


def convert(config: CSV2DBConfig, observe: Observer | None = None) -> Imported:
    """Write ``monitor_metrics.db``; files and lines that cannot be read are reported, and the rest is converted.

    Args:
        observe: called with the number of files that are done.

    Raises:
        ValueError: if there is nothing to convert, or more than a database can hold in reason, or the output belongs
            to something else.
        sqlite3.Error: if the database cannot be written. The files in it are whole: convert again to continue.
    """
    problems = Problems()
    root = checked_place("monitor_path", config.monitor_path)
    choice = choose(root, config.time_start, config.time_end, checked_kinds(config.data_type_list), problems)
    check_size(root, choice)
    folder = output_folder(root, config.output_dirpath, "csv2db")
    done = Imported(folder / FILE_NAME, problems)
    with _nothing_left(done):
        database = MetricsDatabase(done.path, config.step_partition)
        try:
            _Import(database, choice, done, observe or _ignore).run(config.process_num)
            database.index()
        finally:
            database.close()
    return done


@contextmanager
def _nothing_left(done: Imported) -> Iterator[None]:
    """Remove, at the end, a new database to which no file was added, and the folders that were made for it."""
    folder, is_new = done.path.parent, not done.path.exists()
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        yield
    finally:
        if is_new and not done.files:
            with suppress(OSError):
                done.path.unlink(missing_ok=True)
                for path in made:
                    path.rmdir()


class _Import:
    def __init__(self, database: MetricsDatabase, choice: Chosen, done: Imported, observe: Observer) -> None:
        self._database, self._chosen, self._done, self._observe = database, choice, done, observe
        self._total = sum(choice.kinds.values())
        self._counted = _Counted()

    def run(self, processes: int) -> None:
        results = in_order(_parse, self._pieces(), min(processes, self._total))
        try:
            for work, parts in groupby(results, key=lambda result: result[0][0]):
                self._import(work, ((piece, parsed) for (_, piece), parsed in parts))
                self._observe(self._done.files + self._done.known, self._total, work.name)
        except WorkersDiedError as died:
            trouble = message(
                "{error}: convert again to go on after {files}", error=died, files=counted(self._done.files, "file")
            )
            self._done.problems.add(self._database.path, trouble)

    def _pieces(self) -> Iterator[tuple[_Work, Chunk]]:
        for unit in self._chosen.units(self._done.problems):
            for work in self._missing(unit):
                try:
                    parts = list(pieces(work.file, work.directory.rank))
                except (ImportError, OSError, ValueError) as error:
                    self._done.problems.add(work.file.path, message("{error}: left out", error=error))
                    continue
                yield from ((work, piece) for piece in parts)

    def _missing(self, unit: ConversionUnit) -> list[_Work]:
        """Return the files of ``unit`` that the database does not hold in their present state.

        If an earlier file has changed, all are imported again, so that later ones still replace its rows.
        """
        works = []
        formats: dict[Place, set[str]] = {}
        for directory, file in unit.files:
            formats.setdefault(directory.path, set()).add(file.path.suffix)
        for directory, file in unit.files:
            try:
                size, modified_ns = size_and_time(file)
            except OSError as error:
                self._done.problems.add(file.path, message("{error}: left out", error=error))
                continue
            twice = len(formats[directory.path]) > 1
            works.append(_Work(directory, file, size, modified_ns, afresh=False, twice=twice))
        imported = self._database.imported(unit.kind, unit.rank)
        is_imported = [imported.get(work.name) == (work.size, work.modified_ns) for work in works]
        new = is_imported.index(False) if False in is_imported else len(works)
        if any(is_imported[new:]) or any(work.name in imported for work in works[new:]):
            new = 0
            works[0] = works[0]._replace(afresh=imported.keys() <= {work.name for work in works})
        self._done.known += new
        return works[new:]

    def _import(self, work: _Work, parts: Iterable[tuple[Chunk, ParsedChunk | Exception]]) -> None:
        """Import one file, in one transaction."""
        rows = bad = 0
        steps: Counter[int] = Counter()
        try:
            with self._database.transaction():
                if work.afresh:
                    self._database.remove(work.file.signal, work.directory.rank)
                for _, parsed in parts:
                    if isinstance(parsed, Exception):
                        raise _FileError(f"{type(parsed).__name__}: {parsed}") from parsed
                    bad += parsed.bad
                    for line, wrong in parsed.troubles:
                        self._done.problems.add(work.file.path, wrong, line)
                    if parsed.rows is not None:
                        self._database.add(parsed.rows)
                        rows += len(parsed.rows.steps) - self._twice(work, parsed.rows)
                        if work.twice:
                            steps.update(parsed.rows.steps.tolist())
                self._database.remember(
                    work.name, work.file.signal, work.directory.rank, work.size, work.modified_ns, rows, bad
                )
        except (_FileError, ValueError) as error:
            self._done.problems.add(work.file.path, message("{error}: left out", error=error))
            return
        self._done.rows += self._counted.new(work, steps) if work.twice else rows
        self._done.files += 1

    def _twice(self, work: _Work, rows: MetricRows) -> int:
        """Record the rows of which a later one replaces the first; return their number."""
        first = np.unique(rows.steps * len(rows.targets) + rows.target, return_index=True)[1]
        again = np.delete(rows.steps, first)
        for step, number in zip(*map(np.ndarray.tolist, np.unique(again, return_counts=True)), strict=True):
            record_twice(rows.signal, step, number, work.file.path, self._done.problems)
        return len(again)


class _Counted:
    """Count of rows of a directory and kind that was written as CSV and as Parquet: for each step, the format that has
    more rows counts."""

    def __init__(self) -> None:
        self._about: tuple[Place, str] | None = None
        self._steps: dict[str, Counter[int]] = {}

    def new(self, work: _Work, steps: Counter[int]) -> int:
        """Return the number of a file's rows, counted by step, that no file of the other format had."""
        source = work.directory.path, work.file.signal
        if source != self._about:
            self._about, self._steps = source, {"csv": Counter(), "parquet": Counter()}
        before = self._most(steps)
        self._steps[work.file.path.suffix[1:]].update(steps)
        return self._most(steps) - before

    def _most(self, steps: Iterable[int]) -> int:
        csv, parquet = self._steps["csv"], self._steps["parquet"]
        return sum(max(csv[step], parquet[step]) for step in steps)


class _FileError(Exception):
    """A file could not be read."""


def _parse(item: tuple[_Work, Chunk]) -> ParsedChunk:
    return parse(item[1])


def _ignore(done: int, total: int, latest: str) -> None:
    """Do nothing: the observer if none was passed."""


class ExpectedSize(NamedTuple):
    """Estimate of the rows of some files, from their sizes and a sample of one file of each kind."""

    files: int
    bytes: int
    rows: int


def expected_size(choice: Chosen) -> ExpectedSize:
    """Estimate the size of a conversion; no more than one file of each kind is opened."""
    lengths: dict[str, float] = {}
    number = total = 0
    rows = 0.0
    for kind, format_, path, size, known_rows in _files(choice):
        number, total = number + 1, total + size
        if known_rows or format_ != CSV:
            rows += known_rows or size / PARQUET_ROW
            continue
        if kind not in lengths and (length := _line_length(path)):
            lengths[kind] = length
        rows += size / lengths.get(kind, PARQUET_ROW)
    return ExpectedSize(number, total, int(rows))


def check_size(root: Place, choice: Chosen) -> None:
    """Check that a database can hold the chosen files.

    Raises:
        ValueError: if it cannot, with the limit and the alternatives.
    """
    size = expected_size(choice)
    if size.rows <= MOST_ROWS and size.bytes <= MOST_BYTES:
        return
    raise ValueError(
        f"{root}: expected at most {MOST_ROWS:,} rows and {MOST_BYTES / 1e9:,.0f} GB of files for a SQLite database; "
        f"there are about {size.rows:,} rows in {size.files:,} files of {size.bytes / 1e9:,.1f} GB: choose some "
        "with --data-type-list, --time-start and --time-end, or write few large Parquet files with `probe pack` and "
        "query the run as it is with `probe sql`"
    )


def _files(choice: Chosen) -> Iterator[tuple[str, str, Place, int, int]]:
    """Yield kind, format, path, size and rows (0 if unknown) of each chosen file."""
    for directory in choice.directories:
        if directory.packed is not None:
            for file in files_in(directory, Problems()):
                if file.signal in choice.kinds:
                    yield file.signal, file.format, file.path, file.bytes, file.rows
            continue
        for path in directory.path.iterdir():
            name = table_name(path.name)
            if name and not path.name.startswith(".") and name.signal in choice.kinds:
                with suppress(OSError):  # the conversion names it
                    yield name.signal, name.format, path, path.stat().st_size, 0


def _line_length(path: Place) -> float:
    """Return the mean length of the first lines; 0 if there are none."""
    try:
        with opened(path) as file:
            sample = file.read(SAMPLE)
    except (OSError, ValueError):  # the conversion names it
        return 0.0
    lines = sample.count(b"\n")
    return len(sample) / lines if lines > 1 else 0.0
