"""Comparison of the ranks of a node, from the files of their lines on the board."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from probe.core.checks.check import CheckFinding
from probe.core.sentinel.rank_comparison import REMEDIES, GroupComparison
from probe.core.sentinel.rank_group import RankGroup, Role
from probe.core.sentinel.rank_lines import SUFFIX, LinesHeader, LinesReader, RankLine
from probe.core.sentinel.run_account import of_check
from probe.core.storage.check_lines import CHECKS, CheckLines
from probe.core.storage.layout import ranks_text
from probe.core.verdict import JudgedFinding

_log = logging.getLogger("probe")


class _Lines(NamedTuple):
    reader: LinesReader
    header: LinesHeader


class GroupKey(NamedTuple):
    """What the ranks of a group have in common."""

    role: Role
    launch: str
    number: int
    ranks: tuple[int, ...]
    names: tuple[str, ...]


class NodeComparison:
    """Comparison of all ranks whose files lie in a folder. What cannot be read or written is counted in
    :attr:`problems`, and the rest is compared.

    Args:
        folder: the board.
        identity: identity of the program, for the lines of the file.
    """

    def __init__(self, folder: Path, identity: str) -> None:
        self._folder, self._identity = folder, identity
        self._files: dict[Path, _Lines | None] = {}
        self._groups: dict[GroupKey, GroupComparison] = {}
        self._present: dict[GroupKey, set[int]] = {}
        """Ranks of each group at the last look."""
        self.findings: list[tuple[str, JudgedFinding]] = []
        """Findings so far, each with the launch of its ranks."""
        self.problems: list[str] = []
        """Sentences about files that could not be read or written."""

    def look(self, last: bool = False) -> None:
        """Read what the ranks have written since the last call, and compare it. Ranks of a group begin one after the
        other: it is compared once no further one has come between two calls.

        Args:
            last: whether no other call follows.
        """
        self._open_new()
        groups = _groups_of([file for file in self._files.values() if file is not None])
        ready = {key: members for key, members in groups.items() if last or self._present.get(key) == {*members}}
        self._present = {key: {*members} for key, members in groups.items()}
        readers = {file.reader for members in ready.values() for file in members.values()}
        lines = {reader: reader.news() for reader in readers}
        for key, members in ready.items():
            comparison = self._comparison(key, members)
            for rank in comparison.group.ranks:
                self._compare(comparison, members[rank].header, rank, lines[members[rank].reader])

    def _comparison(self, key: GroupKey, members: Mapping[int, _Lines]) -> GroupComparison:
        """Return the comparison of a group: another one if it has another member."""
        ranks = tuple(sorted(members))
        comparison = self._groups.get(key)
        if comparison is None or comparison.group.ranks != ranks:
            header = members[ranks[0]].header
            group = RankGroup(key[0], ranks, header.names, header.split if key[0] == "tensor" else ())
            comparison = self._groups[key] = GroupComparison(group)
        return comparison

    def _compare(self, comparison: GroupComparison, header: LinesHeader, rank: int, lines: Sequence[RankLine]) -> None:
        for finding in comparison.add(rank, lines):
            remedy = REMEDIES[finding.check]
            self.findings.append((header.launch, of_check(finding)._replace(remedy=remedy)))
            self._write(Path(header.root), finding)

    def compared(self, launch: str) -> str:
        """Return a noun phrase about what was compared of the ranks of a launch; empty if nothing was."""
        groups = [(key, each) for key, each in self._groups.items() if each.judged and key.launch == launch]
        texts = [f"ranks {ranks_text(each.group.ranks)} at {each.judged} updates" for _, each in groups]
        return f"the gradients of {texts[0]}" if texts else ""

    def _open_new(self) -> None:
        for path in sorted(self._folder.glob(f"[!.]*{SUFFIX}")):
            if path in self._files:
                continue
            self._files[path] = None
            try:
                reader = LinesReader(path)
                self._files[path] = _Lines(reader, reader.header)
            except (OSError, ValueError) as error:
                self._note(f"lines of a rank: {error}")

    def _write(self, root: Path, finding: CheckFinding) -> None:
        try:
            CheckLines(root).write([finding], self._identity)
        except OSError as error:
            self._note(f"{root / CHECKS}: {error.strerror}")

    def _note(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)
            _log.warning("comparison of ranks: %s", problem)


def _groups_of(files: Sequence[_Lines]) -> dict[GroupKey, dict[int, _Lines]]:
    """Return the groups of two ranks or more; of two processes of one rank, the later one is in it."""
    groups: dict[GroupKey, dict[int, _Lines]] = {}
    for file in sorted(files, key=lambda each: each.header.began):
        for key in _keys(file.header):
            groups.setdefault(key, {})[file.header.rank] = file
    return {key: members for key, members in groups.items() if len(members) > 1}


def _keys(header: LinesHeader) -> Iterator[GroupKey]:
    roles: tuple[tuple[Role, tuple[int, ...]], ...] = ("data", header.replicas), ("tensor", header.tensor_parallel)
    named = [(role, ranks) for role, ranks in roles if len(ranks) > 1 and header.rank in ranks]
    for role, ranks in named:
        yield GroupKey(role, header.launch, header.number, ranks, header.names)
    if not named and header.launch and not header.sharded:
        yield GroupKey("unknown", header.launch, header.number, (), header.names)
