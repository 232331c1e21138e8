"""Comparison of the ranks of a node, from the files of their lines on the board, and with those of other nodes."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from probe.core.checks.check import CheckFinding
from probe.core.judged_findings import of_check
from probe.core.sentinel.node_exchange import NodeExchange
from probe.core.sentinel.rank_comparison import REMEDIES, GroupComparison
from probe.core.sentinel.rank_group import RankGroup, Role
from probe.core.sentinel.rank_lines import SUFFIX, LinesHeader, LinesReader, RankLine
from probe.core.storage.check_lines import CHECKS, CheckLines
from probe.core.storage.layout import ranks_text
from probe.core.verdict import JudgedFinding

_log = logging.getLogger("probe")
SHARE = 0.02
"""Part of the time that the comparison may take on one core; beyond it, fewer updates are compared."""
MOST_DEBT_SECONDS = 0.5
"""Time beyond that part after which fewer are compared: the first looks take longer."""
MOST_STRIDE = 1 << 10
MOST_WAITING = 1024
"""Lines of a rank that wait for a rank of another node; of more, the oldest are dropped."""
PATIENCE_SECONDS = 1.0
"""Time at the end for the last lines of other nodes."""
END_SECONDS = 2.0
"""Time at the end of other nodes for the one that compares, which removes their lines then."""


class GroupKey(NamedTuple):
    """Facts that the ranks of a group have in common."""

    role: Role
    launch: str
    number: int
    ranks: tuple[int, ...]
    names: tuple[str, ...]

    def is_whole(self, ranks: Sequence[int], world: int) -> bool:
        """Return whether these are all ranks of the group that there can be."""
        return len(ranks) == (len(self.ranks) or world)


class _Member:
    """Rank of a group, with its lines that were not compared yet."""

    def __init__(self, header: LinesHeader) -> None:
        self.header = header
        self.lines: list[RankLine] = []
        self.step = -1
        """Step of the latest line."""

    def add(self, lines: Sequence[RankLine]) -> None:
        """Take further lines."""
        self.lines.extend(lines)
        del self.lines[:-MOST_WAITING]
        self.step = max([self.step, *(line.step for line in lines)])


class NodeComparison:
    """Comparison of all ranks whose files lie in a folder. What cannot be read or written is counted in
    :attr:`problems`, and the rest is compared.

    Args:
        folder: the board.
        identity: identity of the program, for the lines of the file.
    """

    def __init__(self, folder: Path, identity: str) -> None:
        self._folder, self._identity = folder, identity
        self._readers: dict[Path, LinesReader | None] = {}
        self._groups: dict[GroupKey, GroupComparison] = {}
        self._present: dict[GroupKey, set[int]] = {}
        """Ranks of each group at the last look."""
        self._stride, self._debt, self._looked_at = 1, 0.0, time.monotonic()
        self._nodes: dict[str, _Nodes] = {}
        """Comparison with other nodes, by launch."""
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
        begun = time.thread_time()
        readers = [reader for reader in self._readers.values() if reader is not None]
        groups = _groups_of(readers)
        ready = {key: members for key, members in groups.items() if last or self._present.get(key) == {*members}}
        self._present = {key: {*members} for key, members in groups.items()}
        distant = [reader for reader in readers if reader.header.has_other_nodes]
        lines = {
            reader: reader.news() for reader in {*distant, *(r for members in ready.values() for r in members.values())}
        }
        for key, members in ready.items():
            comparison = self._comparison(key, {rank: reader.header for rank, reader in members.items()})
            for rank in comparison.group.ranks:
                compared_lines = [line for line in lines[members[rank]] if line.step % self._stride == 0]
                self._report(comparison.add(rank, compared_lines), members[rank].header)
        for reader in distant:
            header = reader.header
            self._nodes.setdefault(header.launch, _Nodes(Path(header.root), header.launch)).add(header, lines[reader])
        self._pace(time.thread_time() - begun)
        for nodes in self._nodes.values():
            self._exchange(nodes, last)

    def _pace(self, spent: float) -> None:
        """Compare fewer updates if that has taken too much time, more if it took little."""
        passed, self._looked_at = time.monotonic() - self._looked_at, time.monotonic()
        self._debt = max(0.0, self._debt + spent - SHARE * passed)
        if self._debt > MOST_DEBT_SECONDS:
            self._stride, self._debt = min(MOST_STRIDE, 2 * self._stride), 0.0
        elif not self._debt and 4 * spent < SHARE * passed:
            self._stride = max(1, self._stride // 2)

    def _exchange(self, nodes: _Nodes, last: bool) -> None:
        try:
            for finding, header in nodes.look(last):
                # ranks of this node are compared at more updates: what differs between them is reported there
                if not any(of == header.launch and earlier.kind == finding.check for of, earlier in self.findings):
                    self._report([finding], header)
        except (OSError, ValueError, TypeError, KeyError) as error:
            self._note(f"lines for other nodes: {error}")

    def _comparison(self, key: GroupKey, headers: Mapping[int, LinesHeader]) -> GroupComparison:
        """Return the comparison of a group: another one if it has another member."""
        comparison = self._groups.get(key)
        if comparison is None or comparison.group.ranks != tuple(sorted(headers)):
            comparison = self._groups[key] = _compared(key, headers)
        return comparison

    def _report(self, findings: Sequence[CheckFinding], header: LinesHeader) -> None:
        for finding in findings:
            remedy = REMEDIES[finding.check]
            self.findings.append((header.launch, of_check(finding)._replace(remedy=remedy)))
            self._write(Path(header.root), finding)

    def compared(self, launch: str) -> str:
        """Return a noun phrase about what was compared of the ranks of a launch; empty if nothing was."""
        groups = [*self._nodes[launch].groups.items()] if launch in self._nodes else []
        groups += self._groups.items()
        present = [(key, comparison) for key, comparison in groups if comparison.judged and key.launch == launch]
        texts = [
            f"ranks {ranks_text(comparison.group.ranks)} at {comparison.judged} updates" for _, comparison in present
        ]
        return f"the gradients of {texts[0]}" if texts else ""

    def _open_new(self) -> None:
        for path in sorted(self._folder.glob(f"[!.]*{SUFFIX}")):
            if path in self._readers:
                continue
            self._readers[path] = None
            try:
                self._readers[path] = LinesReader(path)
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


class _Nodes:
    """Ranks of one launch on several nodes: they are compared by the parent that has rank 0."""

    def __init__(self, root: Path, launch: str) -> None:
        self._exchange = NodeExchange(root, launch)
        self._members: dict[GroupKey, dict[int, _Member]] = {}
        self._ranks: set[int] = set()
        """Ranks of this node."""
        self.groups: dict[GroupKey, GroupComparison] = {}

    @property
    def _compares(self) -> bool:
        return 0 in self._ranks

    def add(self, header: LinesHeader, lines: Sequence[RankLine]) -> None:
        """Take lines of a rank of this node."""
        self._ranks.add(header.rank)
        self._take(*self._exchange.add(header, lines))

    def _take(self, header: LinesHeader, lines: Sequence[RankLine]) -> None:
        for key in _keys(header):
            members = self._members.setdefault(key, {})
            member = members.get(header.rank)
            if member is None or member.header.began < header.began:
                member = members[header.rank] = _Member(header)
            if self._compares:
                member.add(lines)

    def look(self, last: bool) -> Iterator[tuple[CheckFinding, LinesHeader]]:
        """Exchange lines if it is time, and yield what is found between nodes.

        Raises:
            OSError, ValueError, TypeError, KeyError: if a file cannot be written or read.
        """
        if not self._exchange.is_due(last):
            return
        self._exchange.leave()
        if self._compares:
            yield from self._compared(last)
        if last:
            self._exchange.end(0.0 if self._compares else END_SECONDS)

    def _compared(self, last: bool) -> Iterator[tuple[CheckFinding, LinesHeader]]:
        deadline = time.monotonic() + (PATIENCE_SECONDS if last else 0.0)
        while True:
            for header, lines in self._exchange.others():
                self._take(header, lines)
            late = time.monotonic() >= deadline
            yield from self._judged(last and late)
            if late or not self._lags():
                break
            time.sleep(0.05)

    def _judged(self, last: bool) -> Iterator[tuple[CheckFinding, LinesHeader]]:
        for key, members in self._members.items():
            world = max(member.header.world for member in members.values())
            ranks = sorted(members)
            if len(ranks) < 2 or not (last or key.is_whole(ranks, world)):
                continue
            comparison = self.groups.get(key)
            if comparison is None or comparison.group.ranks != tuple(ranks):
                comparison = self.groups[key] = _compared(key, {rank: members[rank].header for rank in ranks})
            for rank in ranks:
                lines = [*members[rank].lines]
                members[rank].lines.clear()
                for finding in comparison.add(rank, lines):
                    yield finding, members[min(ranks)].header

    def _lags(self) -> bool:
        """Return whether ranks have not come, or not their latest lines."""
        ends = [{member.step for member in members.values()} for members in self._members.values()]
        waiting = any(member.lines for members in self._members.values() for member in members.values())
        return waiting or any(len(steps) > 1 for steps in ends)


def _compared(key: GroupKey, headers: Mapping[int, LinesHeader]) -> GroupComparison:
    header = headers[min(headers)]
    split = header.split if key.role == "tensor" else ()
    return GroupComparison(RankGroup(key.role, tuple(sorted(headers)), header.names, split))


def _groups_of(readers: Sequence[LinesReader]) -> dict[GroupKey, dict[int, LinesReader]]:
    """Return the groups of two ranks or more; of two processes of one rank, the later one is in it."""
    groups: dict[GroupKey, dict[int, LinesReader]] = {}
    for reader in sorted(readers, key=lambda reader: reader.header.began):
        for key in _keys(reader.header):
            groups.setdefault(key, {})[reader.header.rank] = reader
    return {key: members for key, members in groups.items() if len(members) > 1}


def _keys(header: LinesHeader) -> Iterator[GroupKey]:
    roles: tuple[tuple[Role, tuple[int, ...]], ...] = ("data", header.replicas), ("tensor", header.tensor_parallel)
    named = [(role, ranks) for role, ranks in roles if len(ranks) > 1 and header.rank in ranks]
    for role, ranks in named:
        yield GroupKey(role, header.launch, header.number, ranks, header.names)
    if not named and header.launch and not header.sharded:
        yield GroupKey("unknown", header.launch, header.number, (), header.names)
