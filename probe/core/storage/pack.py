"""Packing of a run: the files of all ranks, in a folder of their own, as :mod:`packed_run` describes.

The source is only read. Each file is written under another name and moved; a record of it lets an interrupted pack go
on. The index is written last: a folder without it is no packed run.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import quote

from probe.core.messages import plural
from probe.core.naming import encodable
from probe.core.storage.anomaly_json import FOLDER
from probe.core.storage.directories import RankDirectory, find, has_rows, last_run, place, record_earlier, runs
from probe.core.storage.duckdb_reader import MEMORY, Rows
from probe.core.storage.layout import PARQUET, is_number
from probe.core.storage.metrics_schema import FILE_NAMES
from probe.core.storage.pack_blocks import SEALS, BlockWork, Sealed, Source, write_block
from probe.core.storage.packed_run import (
    INDEX,
    Block,
    Interned,
    PackedSignal,
    Written,
    index_bytes,
    index_fields,
    is_packed,
)
from probe.core.storage.performance_file import PATTERN
from probe.core.storage.problems import Problem, Problems
from probe.core.storage.table_files import each_once, tables

BLOCK_BYTES = 256 << 20
"""Bytes of the files that are packed into one; CSV shrinks to a third or less."""
BAND = 64
"""Ranks whose rows are packed together, at least."""

InOrder = Callable[[Callable[[BlockWork], Sealed], Iterable[BlockWork]], Iterator[tuple[BlockWork, Any]]]
"""Function that calls another one with each item and yields the items with results, or exceptions, in order."""


Observer = Callable[[int, int, str], None]
"""Function called with the last rank that is done, the last of all, and the file that was written."""


@dataclass
class PackedReport:
    """The result of packing."""

    out: Path
    problems: Problems = field(default_factory=Problems)
    ranks: int = 0
    files: int = 0
    """Files that were packed."""
    blocks: int = 0
    """Files that were written, or were there already."""
    rows: int = 0
    bytes: int = 0
    before: int = 0
    """Bytes of the files that were packed."""

    @property
    def summary(self) -> str:
        """One line for people."""
        files, blocks = plural(self.files, "file"), plural(self.blocks, "file")
        return (
            f"{self.rows:,} rows of {self.ranks} {plural(self.ranks, 'rank')}: {self.files:,} {files} with "
            f"{self.before / 1e6:,.1f} MB, are {self.blocks:,} {blocks} with "
            f"{self.bytes / 1e6:,.1f} MB in {self.out}"
        )


class PackError(Exception):
    """A file could not be written; packing again goes on."""


def in_this_process(
    work: Callable[[BlockWork], Sealed], items: Iterable[BlockWork]
) -> Iterator[tuple[BlockWork, Sealed]]:
    """Yield each item with the result of ``work``."""
    yield from ((item, work(item)) for item in items)


def pack(
    root: Path,
    out: Path,
    each: InOrder = in_this_process,
    observe: Observer | None = None,
    block_bytes: int = BLOCK_BYTES,
    memory: str = MEMORY,
) -> PackedReport:
    """Pack the run in ``root`` that began last into the folder ``out``.

    Args:
        each: calls a function for each of the files that are written.
        observe: called after each file.
        block_bytes: bytes of the files that are packed into one.
        memory: memory for each of the files that are written at a time.

    Raises:
        ValueError: if there is no run in ``root``, or ``out`` is no place for a packed run.
        PackError: if a file cannot be written.
        ImportError: if DuckDB is missing.
    """
    root, out = place(root), out.expanduser()
    _check(root, out)
    return _Pack(root, out, block_bytes, memory).run(each, observe or _ignore)


def _check(root: Path, out: Path) -> None:
    """Raise ValueError if ``root`` cannot be packed into ``out``."""
    if root.is_dir() and is_packed(root):
        raise ValueError(f"{root}: expected the directory in which ranks have written; this is a packed run already")
    inside, place_of_out = root.resolve(), out.resolve()
    if place_of_out == inside or inside in place_of_out.parents or place_of_out in inside.parents:
        raise ValueError(f"{out}: expected a folder outside of {root}, and not around it: a source is never changed")
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out}: expected a folder, or none; this is a file")
    if out.is_dir() and any(out.iterdir()) and not is_packed(out) and not (out / SEALS).is_dir():
        raise ValueError(f"{out}: expected an empty folder, a packed run or none; there are other files in it")


class _Names:
    """Numbers of the names that files of a signal have."""

    def __init__(self) -> None:
        self.names: list[Written] = []
        self._known: dict[Written, int] = {}

    def number(self, name: Written) -> int:
        at = self._known.setdefault(name, len(self.names))
        if at == len(self.names):
            self.names.append(name)
        return at


class _Signal:
    """What is known of a signal while the run is packed."""

    def __init__(self) -> None:
        self.names = _Names()
        self.columns = Interned()
        self.blocks: list[Block] = []
        self.of: dict[int, list[tuple[int, int, int]]] = {}
        self.groups: dict[tuple[str, tuple[str, ...]], None] = {}
        self.in_band: dict[tuple[int, int], int] = {}

    def add(self, work: BlockWork, sealed: Sealed) -> None:
        """Add a finished file."""
        for packed in sealed.packed:
            source = work.sources[packed.source]
            columns = self.columns.number(list(packed.columns))
            entry = (source.name, columns, self.in_band.get(work.ranks, 0))
            self.of.setdefault(source.directory, []).append(entry)
        if sealed.steps is None:
            return
        self.in_band[work.ranks] = self.in_band.get(work.ranks, 0) + 1
        self.blocks.append(Block(work.path, work.ranks, sealed.steps, sealed.rows, sealed.bytes, sealed.columns))

    def packed(self, directories: int) -> PackedSignal:
        """Return the entry of the index."""
        sets: dict[tuple[tuple[int, int, int], ...], int] = {}
        of = []
        for n in range(directories):
            own = tuple(sorted(self.of.get(n, ()), key=lambda entry: self._order(entry[0])))
            of.append(sets.setdefault(own, len(sets)) if own else -1)
        numbers: dict[str, None] = {}
        for columns in self.columns.values:
            numbers |= dict.fromkeys(column for column in columns if is_number(column))
        return PackedSignal(
            tuple(numbers),
            tuple(self.names.names),
            tuple(map(tuple, self.columns.values)),
            tuple(sets),
            tuple(of),
            tuple(self.blocks),
        )

    def _order(self, name: int) -> tuple[int, int, str]:
        written = self.names.names[name]
        return written.first, written.part, written.name


class _Pack:
    def __init__(self, root: Path, out: Path, block_bytes: int, memory: str) -> None:
        self._root, self._out, self._block_bytes, self._memory = root, out, block_bytes, memory
        self._found, self._chosen = Problems(), Problems()
        *others, self._last = runs(find(root, self._found))
        record_earlier(others, root, self._chosen)
        self._positions = _positions(self._last.directories)
        self._signals: dict[str, _Signal] = {}
        self._opened: list[tuple[int, Problem]] = []
        self._closed: list[tuple[int, Problem]] = []
        self._report = PackedReport(out, ranks=len(self._last.ranks))
        self._databases: list[Rows] = []

    @property
    def _base(self) -> Path:
        """The folder that holds the directories of ranks."""
        return self._last.directories[0].path.parent

    def run(self, each: InOrder, observe: Observer) -> PackedReport:
        """Write all files, then the index."""
        (self._out / SEALS).mkdir(parents=True, exist_ok=True)
        kept = set()
        try:
            for work, sealed in each(write_block, self._works()):
                if isinstance(sealed, Exception):
                    raise PackError(f"{self._out / work.path}: {sealed}: pack again to go on") from sealed
                self._add(work, sealed)
                kept |= {work.path} if sealed.steps else set()
                observe(work.ranks[1], self._last.ranks[-1], work.path)
        finally:
            for rows in self._databases:
                rows.close()
        self._copy_files()
        self._write_index(complete=True)
        self._remove_others(kept)
        with Rows(last_run(self._out, self._report.problems).directories, self._report.problems):
            return self._report

    def _works(self) -> Iterator[BlockWork]:
        """Yield the files that are to be written, the sources of some ranks looked at when it is their turn."""
        numbered = list(enumerate(self._last.directories))
        band = max(BAND, self._band_of(numbered))
        for _, own in groupby(numbered, key=lambda pair: self._last.ranks.index(pair[1].rank) // band):
            directories = list(own)
            ranks = directories[0][1].rank, directories[-1][1].rank
            found: dict[str, list[Source]] = {}
            for n, directory in directories:
                for source in self._sources(n, directory):
                    found.setdefault(source.file.signal, []).append(source)
            for signal, sources in found.items():
                yield from self._cut(signal, ranks, sources)

    def _band_of(self, numbered: Sequence[tuple[int, RankDirectory]]) -> int:
        """Return the number of ranks whose files have about the bytes of one packed file."""
        some = [directory for _, directory in numbered[:16]]
        size = sum(
            entry.stat().st_size for directory in some for entry in os.scandir(directory.path) if entry.is_file()
        )
        return self._block_bytes * len(some) // max(1, size)

    def _sources(self, n: int, directory: RankDirectory) -> Iterator[Source]:
        problems = Problems()
        if any((directory.path / name).exists() for name in FILE_NAMES):
            rows = Rows([directory], problems)
            self._databases.append(rows)  # its copies of rows are needed until they are packed
            files = [(file, rows.original(file)) for own in rows.files.values() for _, file in own]
        else:
            files = [(file, file.path) for file in each_once(tables(directory.path, problems))]
        self._opened += [(n, problem) for problem in problems.kept]
        for file, original in files:
            try:
                found = original.stat()
            except OSError as error:
                self._opened.append((n, Problem(original, None, f"{error.strerror}: left out", True)))
                continue
            name = Written(original.name, file.first, file.last, file.part, file.format)
            number = self._signals.setdefault(file.signal, _Signal()).names.number(name)
            yield Source(
                file,
                original,
                n,
                directory.rank,
                self._positions[n],
                directory.until,
                number,
                found.st_size,
                found.st_mtime_ns,
            )

    def _cut(self, signal: str, ranks: tuple[int, int], sources: Sequence[Source]) -> Iterator[BlockWork]:
        """Yield the files for the rows of ``sources``: as many steps in each as fit."""
        held: list[Source] = []
        size = 0
        for _, alike in groupby(sorted(sources, key=_by_step), key=lambda source: source.file.first):
            own = list(alike)
            more = sum(source.size for source in own)
            if held and size + more > self._block_bytes:
                yield self._work(signal, ranks, held)
                held, size = [], 0
            held += own
            size += more
        if held:
            yield self._work(signal, ranks, held)

    def _work(self, signal: str, ranks: tuple[int, int], sources: Sequence[Source]) -> BlockWork:
        folder = f"{quote(encodable(signal), safe='')}/ranks={ranks[0]}-{ranks[1]}"
        first, last = min(s.file.first for s in sources), max(s.file.last for s in sources)
        path = f"{folder}/steps={first}-{last}.{PARQUET}"
        ordered = sorted(sources, key=lambda source: (source.rank, source.position, *_by_step(source)))
        return BlockWork(self._out, path, signal, ranks, tuple(ordered), self._memory)

    def _add(self, work: BlockWork, sealed: Sealed) -> None:
        self._signals[work.signal].add(work, sealed)
        by_path = {source.original: source.directory for source in work.sources}
        for problems, held in ((sealed.opened, self._opened), (sealed.closed, self._closed)):
            held += [(by_path.get(problem.path, 0), problem) for problem in problems]
        self._report.rows += sealed.rows
        self._report.bytes += sealed.bytes
        self._report.blocks += sealed.steps is not None
        self._report.files += len(sealed.packed)
        self._report.before += sum(work.sources[each.source].size for each in sealed.packed)

    def _write_index(self, complete: bool) -> None:
        directories = self._last.directories
        columns: dict[str, list[Any]] = {
            "name": [d.path.name for d in directories],
            "rank": [d.rank for d in directories],
            "position": self._positions,
            "time": [d.time for d in directories],
            "began": [d.began for d in directories],
            "first_step": [d.first_step for d in directories],
            "written": [has_rows(d) for d in directories],
        }
        signals = {name: signal.packed(len(directories)) for name, signal in self._signals.items() if signal.blocks}
        problems = {
            "found": self._found.kept,
            "chosen": self._chosen.kept,
            "opened": [problem for _, problem in sorted(self._opened, key=lambda pair: pair[0])],
            "closed": [problem for _, problem in sorted(self._closed, key=lambda pair: pair[0])],
        }
        fields = index_fields(columns, [d.manifest for d in directories], signals, problems, self._base, complete)
        _write_bytes(self._out / INDEX, index_bytes(fields))

    def _copy_files(self) -> None:
        """Copy the files of the run that are no rank's: findings, and readings of machines."""
        if (self._base / FOLDER).is_dir():
            shutil.copytree(self._base / FOLDER, self._out / FOLDER, dirs_exist_ok=True)
        for path in sorted(self._base.glob(PATTERN)):
            if path.is_file():
                shutil.copy2(path, self._out / path.name)

    def _remove_others(self, kept: set[str]) -> None:
        """Remove the records, and files of an earlier pack of other rows."""
        shutil.rmtree(self._out / SEALS)
        for path in self._out.glob(f"*/ranks=*/*steps=*.{PARQUET}*"):
            if str(path.relative_to(self._out)) not in kept:
                path.unlink()


def _ignore(done: int, total: int, name: str) -> None:
    """Do nothing: the observer if none was passed."""


def _positions(directories: Sequence[RankDirectory]) -> list[int]:
    """Return the position of each directory among those of its rank."""
    counts: dict[int, int] = {}
    positions = []
    for directory in directories:
        positions.append(counts.get(directory.rank, 0))
        counts[directory.rank] = positions[-1] + 1
    return positions


def _by_step(source: Source) -> tuple[int, int, str]:
    return source.file.first, source.file.part, source.file.path.name


def _write_bytes(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
