"""Plan of a packed run: which files of which ranks become one, and its index, collected file by file."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from probe.core.messages import encodable
from probe.core.storage.directories import RankDirectory, RecordedRun, find, ranks_with_rows, record_earlier, runs
from probe.core.storage.duckdb_reader import Rows, connect
from probe.core.storage.files import moved
from probe.core.storage.layout import PARQUET, is_number
from probe.core.storage.location import Place, on_disk
from probe.core.storage.metrics_schema import FILE_NAMES
from probe.core.storage.packed.blocks import BlockWork, Sealed, Source
from probe.core.storage.packed.run import (
    INDEX,
    Interned,
    PackedBlock,
    PackedSignal,
    WrittenName,
    index_bytes,
    index_fields,
)
from probe.core.storage.problems import Problem, Problems
from probe.core.storage.sqlite_reader import FORMAT as SQLITE
from probe.core.storage.table_files import TableFile, each_once, readable, tables

LOOKED_AT = 16
"""Directories from whose sizes the number of ranks that are packed together follows."""
STALLED_SECONDS = 600.0
"""Seconds after which a file that a rank could still write counts as closed."""
Entries = tuple[tuple[int, int, int], ...]
"""Files of a directory: the numbers of name and columns, and that of the block among those of the same ranks."""


class PackSettings(NamedTuple):
    """Sizes of what is packed."""

    block_bytes: int
    """Bytes of the files that are packed into one."""
    memory: str
    """Memory for each file that is written."""
    band: int | None = None
    """Number of ranks that are packed together, whether or not all are there; None to choose it by sizes."""
    closed_only: bool = False
    """True to leave out files that a rank may still write, and those that do not fill a packed file yet."""


class PackPlan:
    """The last run in a directory, and the files that it is packed into.

    Use as a context manager, since copies of rows of databases are kept until they are packed.

    Raises:
        ValueError: if there is no run.
    """

    def __init__(self, root: Path, out: Path, settings: PackSettings) -> None:
        self._out, self._settings = out, settings
        self.found, self.chosen = Problems(), Problems()
        *others, self.run = runs(find(root, self.found))
        record_earlier(others, root, self.chosen)
        self.positions = _positions(self.run)
        self.draft = IndexDraft(self.run.directories, self.positions)
        self.band = settings.band or self._band()
        self._highest = max(directory.rank for directory in self.run.directories)
        self._databases: list[Rows] = []

    def __enter__(self) -> PackPlan:
        return self

    def __exit__(self, *_: object) -> None:
        for rows in self._databases:
            rows.close()

    @property
    def base(self) -> Path:
        """The folder that holds the directories of ranks."""
        return on_disk(self.run.directories[0].path).parent

    def bands(self) -> Iterator[list[int]]:
        """Yield the numbers of the directories that are packed together."""
        numbered = enumerate(self.run.directories)
        for _, band_of_ranks in groupby(numbered, key=lambda pair: pair[1].rank // self.band):
            yield [n for n, _ in band_of_ranks]

    def works(self, numbers: Sequence[int]) -> Iterator[BlockWork]:
        """Yield the files that the rows of some directories are packed into, by signal, in the order of steps."""
        band = self.run.directories[numbers[0]].rank // self.band
        ranks = band * self.band, (band + 1) * self.band - 1
        if self._settings.band is None:
            ranks = ranks[0], min(ranks[1], self._highest)
        by_signal: dict[str, list[Source]] = {}
        for n in numbers:
            for source in self._sources(n):
                by_signal.setdefault(source.file.signal, []).append(source)
        for signal, sources in by_signal.items():
            closed = self._closed(sources) if self._settings.closed_only else sources
            yield from self._cut(signal, ranks, closed)

    def _band(self) -> int:
        """Return the number of ranks whose files have about the bytes of one packed file."""
        some = self.run.directories[:LOOKED_AT]
        paths = (path for directory in some for path in on_disk(directory.path).iterdir())
        sizes = (path.stat().st_size for path in paths if path.is_file())
        fitting = self._settings.block_bytes * len(some) // max(1, sum(sizes))
        return 1 << max(6, min(fitting.bit_length(), 20))

    def _sources(self, n: int) -> Iterator[Source]:
        directory, problems = self.run.directories[n], Problems()
        files = self._files(directory, problems)
        self.draft.add_problems(n, problems.kept)
        for file, original in files:
            try:
                status = original.stat()
            except OSError as error:
                self.draft.add_problems(n, [Problem(original, None, f"{error.strerror}: left out", True)])
                continue
            name = WrittenName(original.name, file.first, file.last, file.part, file.format)
            yield Source(
                file,
                original,
                n,
                directory.rank,
                self.positions[n],
                directory.until,
                self.draft.of(file.signal).names.number(name),
                file.path.stat().st_size if file.format == SQLITE else status.st_size,
                status.st_mtime_ns,
            )

    def _files(self, directory: RankDirectory, problems: Problems) -> list[tuple[TableFile, Path]]:
        """Return the files of a directory, each with the one that the rank has written."""
        if any((directory.path / name).exists() for name in FILE_NAMES):
            rows = Rows([directory], problems)
            self._databases.append(rows)
            return [(file, on_disk(rows.original(file))) for of_signal in rows.files.values() for _, file in of_signal]
        files = tables(directory.path, problems)
        once = {file.path: file for file in each_once(files)}
        if others := [file for file in files if file.path not in once]:
            with closing(connect(threads=1)) as connection:  # a reader names those that are damaged
                readable(connection, others, problems)
        return [(file, on_disk(file.path)) for file in once.values()]

    def _closed(self, sources: Sequence[Source]) -> list[Source]:
        """Return the files before the first step that any rank may still write."""
        latest = {source.rank: source for source in sorted(sources, key=lambda s: (s.position, *_by_step(s)))}
        now = time.time_ns()
        open_steps = [
            source.file.first
            for source in latest.values()
            if not self.run.directories[source.directory].manifest.ended
            and now - source.modified_ns < STALLED_SECONDS * 1e9
        ]
        return [source for source in sources if not open_steps or source.file.first < min(open_steps)]

    def _cut(self, signal: str, ranks: tuple[int, int], sources: Sequence[Source]) -> Iterator[BlockWork]:
        """Yield the files for the rows of ``sources``: as many steps in each as fit."""
        part: list[Source] = []
        size = 0
        for _, alike in groupby(sorted(sources, key=_by_step), key=lambda source: source.file.first):
            group = list(alike)
            more = sum(source.size for source in group)
            if part and size + more > self._settings.block_bytes:
                yield self._work(signal, ranks, part)
                part, size = [], 0
            part += group
            size += more
        if part and not self._settings.closed_only:
            yield self._work(signal, ranks, part)

    def _work(self, signal: str, ranks: tuple[int, int], sources: Sequence[Source]) -> BlockWork:
        folder = f"{quote(encodable(signal), safe='')}/ranks={ranks[0]}-{ranks[1]}"
        first, last = min(s.file.first for s in sources), max(s.file.last for s in sources)
        path = f"{folder}/steps={first}-{last}.{PARQUET}"
        ordered = sorted(sources, key=lambda source: (source.rank, source.position, *_by_step(source)))
        return BlockWork(self._out, path, signal, ranks, tuple(ordered), self._settings.memory)


def _positions(run: RecordedRun) -> list[int]:
    """Return the position of each directory among those of its rank."""
    counts: dict[int, int] = {}
    positions = []
    for directory in run.directories:
        positions.append(counts.get(directory.rank, 0))
        counts[directory.rank] = positions[-1] + 1
    return positions


def _by_step(source: Source) -> tuple[int, int, str]:
    return source.file.first, source.file.part, source.file.path.name


class FileNames:
    """Numbers of the names that files of a signal have."""

    def __init__(self) -> None:
        self.names: list[WrittenName] = []
        self._known: dict[WrittenName, int] = {}

    def number(self, name: WrittenName) -> int:
        """Return the number of a name; a new one for a new name."""
        at = self._known.setdefault(name, len(self.names))
        if at == len(self.names):
            self.names.append(name)
        return at


class SignalDraft:
    """Names, columns and packed files of one signal."""

    def __init__(self) -> None:
        self.names = FileNames()
        self.blocks: list[PackedBlock] = []
        self._columns = Interned()
        self._sets: dict[Entries, int] = {}
        self._of: dict[int, int] = {}
        self._open: dict[int, list[tuple[int, int, int]]] = {}
        self._ranks: tuple[int, int] | None = None
        self._number = 0

    def add(self, work: BlockWork, sealed: Sealed) -> None:
        """Add a finished file; those of the same ranks come one after the other."""
        if work.ranks != self._ranks:
            self._finish()
            self._ranks, self._number = work.ranks, 0
        for packed in sealed.packed:
            source = work.sources[packed.source]
            entry = (source.name, self._columns.number(list(packed.columns)), self._number)
            self._open.setdefault(source.directory, []).append(entry)
        if sealed.steps is not None:
            self._number += 1
            self.blocks.append(
                PackedBlock(
                    work.path, work.ranks, sealed.steps, sealed.rows, sealed.bytes, sealed.columns, sealed.sha256
                )
            )

    def _finish(self) -> None:
        for directory, of_directory in self._open.items():
            entries = tuple(sorted(of_directory, key=lambda entry: self._order(entry[0])))
            self._of[directory] = self._sets.setdefault(entries, len(self._sets))
        self._open = {}

    def _order(self, name: int) -> tuple[int, int, str]:
        written = self.names.names[name]
        return written.first, written.part, written.name

    def entry(self, directories: int) -> PackedSignal:
        """Return the signal as the index has it.

        Args:
            directories: number of all directories.
        """
        self._finish()
        numbers: dict[str, None] = {}
        for columns in self._columns.values:
            numbers |= dict.fromkeys(column for column in columns if is_number(column))
        return PackedSignal(
            tuple(numbers),
            tuple(self.names.names),
            tuple(map(tuple, self._columns.values)),
            tuple(self._sets),
            tuple(self._of.get(n, -1) for n in range(directories)),
            tuple(self.blocks),
        )


class IndexDraft:
    """Signals of a run, and the problems that its readers find.

    Args:
        directories: directories of the run, by number.
        positions: position of each among those of its rank.
    """

    def __init__(self, directories: Sequence[RankDirectory], positions: Sequence[int]) -> None:
        self._directories, self._positions = directories, positions
        self.signals: dict[str, SignalDraft] = {}
        self._problems: dict[str, list[tuple[int, Problem]]] = {"opened": [], "closed": []}

    def of(self, signal: str) -> SignalDraft:
        """Return the draft of a signal; a new one if it is new."""
        return self.signals.setdefault(signal, SignalDraft())

    def add(self, work: BlockWork, sealed: Sealed) -> None:
        """Add a finished file."""
        self.of(work.signal).add(work, sealed)
        directory_of: dict[Place, int] = {source.original: source.directory for source in work.sources}
        for stage, problems in (("opened", sealed.opened), ("closed", sealed.closed)):
            self._problems[stage] += [(directory_of.get(problem.path, 0), problem) for problem in problems]

    def add_problems(self, directory: int, problems: Sequence[Problem]) -> None:
        """Add problems with the files of a directory."""
        self._problems["opened"] += [(directory, problem) for problem in problems]

    def write(
        self,
        out: Path,
        of_directories: Sequence[Problem],
        of_runs: Sequence[Problem],
        complete: bool,
        tables: Mapping[str, int],
    ) -> None:
        """Write the index in one move.

        Args:
            of_directories: problems with directories.
            of_runs: problems with runs.
            tables: sizes of the tables besides rows.
        """
        directories = self._directories
        columns: dict[str, list[Any]] = {
            "name": [d.path.name for d in directories],
            "rank": [d.rank for d in directories],
            "position": list(self._positions),
            "time": [d.time for d in directories],
            "began": [d.began for d in directories],
            "first_step": [d.first_step for d in directories],
            "written": [bool(ranks_with_rows([d])) for d in directories],
        }
        signals = {name: draft.entry(len(directories)) for name, draft in self.signals.items() if draft.blocks}
        problems = {
            stage: [problem for _, problem in sorted(of_stage, key=lambda pair: pair[0])]
            for stage, of_stage in self._problems.items()
        }
        fields = index_fields(
            columns,
            [d.manifest for d in directories],
            signals,
            {"found": of_directories, "chosen": of_runs, **problems},
            directories[0].path.parent,
            complete,
            tables,
        )
        with moved(out / INDEX) as path:
            path.write_bytes(index_bytes(fields))
