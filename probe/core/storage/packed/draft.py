"""Index of a packed run, collected file by file while the run is packed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from probe.core.storage.directories import RankDirectory, ranks_with_rows
from probe.core.storage.files import moved
from probe.core.storage.layout import is_number
from probe.core.storage.location import Place
from probe.core.storage.packed.blocks import BlockWork, Sealed
from probe.core.storage.packed.run import (
    INDEX,
    Interned,
    PackedBlock,
    PackedSignal,
    WrittenName,
    index_bytes,
    index_fields,
)
from probe.core.storage.problems import Problem

Entries = tuple[tuple[int, int, int], ...]
"""Files of a directory: the numbers of name and columns, and that of the block among those of the same ranks."""


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
