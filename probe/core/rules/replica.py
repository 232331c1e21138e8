"""Data-parallel replicas that hold the same parameters, and do not: a sign of silent data corruption.

:func:`odd_ones` compares what several ranks have of one tensor, from their files or while training runs;
:class:`AnomalyReplica` reports what ``global_stats`` has found that way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from probe.core.fields import Section
from probe.core.moments import OPS
from probe.core.naming import SIGNALS
from probe.core.records import Array, Batch, Finding, Key
from probe.core.rules.about import About
from probe.core.rules.reporter import Reporter
from probe.core.storage.layout import ranks_text

COPIES, AGREEING, OTHER = "copies", "agreeing", "differs_from"
"""Columns that ``global_stats`` adds to a signal in steps in which not all replicas agree: how many ranks hold a copy
of the row's tensor, how many of them, this one included, have this one's numbers, and the lowest rank that has others
(NaN if none has)."""


class Split(NamedTuple):
    """How replicas of one tensor disagree."""

    ranks: tuple[int, ...]
    """Those that differ from the majority; all of them where none of their versions has one."""
    majority: tuple[int, ...]
    """More than half of the ranks, which have the same; empty if there is no such majority (always so between two)."""
    number: str
    """The first of the numbers in which they disagree."""
    values: tuple[float, ...]
    """That number on each of ``ranks``."""
    expected: float
    """The same in the majority; NaN if there is none."""

    @property
    def text(self) -> str:
        """Who differs from whom, such as ``rank 2 differs from ranks 0,1,3`` or ``between ranks 0 and 1``."""
        if not self.majority:
            return f"between {_listed(self.ranks)}"
        differ = "differs" if len(self.ranks) == 1 else "differ"
        return f"{_listed(self.ranks)} {differ} from {_listed(self.majority)}"


def _listed(ranks: Sequence[int]) -> str:
    if len(ranks) == 2:
        return f"ranks {ranks[0]} and {ranks[1]}"
    return f"rank{'s' * (len(ranks) > 1)} {ranks_text(ranks)}"


def odd_ones(rows: Mapping[int, Mapping[str, float]], tolerance: float = 0.0) -> Split | None:
    """Which ranks have other numbers of one tensor than the majority of its replicas; None if all agree.

    Args:
        rows: for each rank its numbers of one (signal, key, step, part): moments, or ops as a file gives them. Only
            numbers that all of them have are compared.
        tolerance: relative difference of two numbers that are taken for equal. Replicas on machines of one kind are
            the same to the last bit, and so are their numbers, as written too: 0 suits both. A change that the written
            digits do not show is not seen. Where ranks run on processors of different kinds, sums are added up in
            different orders: 1e-12 for moments in memory, 2e-6 for numbers of six digits.
    """
    names = [name for name in next(iter(rows.values()), {}) if all(name in row for row in rows.values())]
    versions: list[tuple[tuple[float, ...], list[int]]] = []
    for rank in sorted(rows):
        numbers = tuple(float(rows[rank][name]) for name in names)
        same = (held for version, held in versions if _alike(version, numbers, tolerance))
        (next(same, None) or _begun(versions, numbers)).append(rank)
    if len(versions) < 2:
        return None
    usual, holders = max(versions, key=lambda version: len(version[1]))
    has_majority = 2 * len(holders) > len(rows)
    odd = [rank for rank in sorted(rows) if not (has_majority and rank in holders)]
    against = usual if has_majority else versions[0][0]
    others = [version for version, held in versions if held is not (holders if has_majority else versions[0][1])]
    place = next(n for n in range(len(names)) if not _alike(others[0][n : n + 1], against[n : n + 1], tolerance))
    values = tuple(float(rows[rank][names[place]]) for rank in odd)
    majority = tuple(holders) if has_majority else ()
    return Split(tuple(odd), majority, names[place], values, usual[place] if has_majority else np.nan)


def _begun(versions: list[tuple[tuple[float, ...], list[int]]], numbers: tuple[float, ...]) -> list[int]:
    versions.append((numbers, []))
    return versions[-1][1]


def _alike(one: Sequence[float], other: Sequence[float], tolerance: float) -> bool:
    """Equal, both NaN, or nearly so."""
    return all(
        a == b or (a != a and b != b) or abs(a - b) <= tolerance * max(abs(a), abs(b)) < np.inf  # noqa: PLR0124 - NaN
        for a, b in zip(one, other, strict=True)
    )


def replicated(signal: str) -> bool:
    """Whether healthy replicas hold a tensor of ``signal`` alike: parameters and optimizer state, but neither
    activations nor gradients before they are reduced, and no tensor of communication."""
    return signal in ("param_origin", "param_updated") or signal not in SIGNALS


class ReplicaArgs(Section):
    """Data-parallel replicas whose parameters differ. Needs global_stats, and param_distribution or mv_distribution."""


class AnomalyReplica(About):
    """Reports parameters and optimizer state of this rank that differ from what its replicas hold.

    It judges the columns that ``global_stats`` adds while this rule is configured. A rank reports itself if it is not
    one of a majority that agrees: the odd one out among three or more, both of two. What stays different is reported
    when it begins.
    """

    Args = ReplicaArgs
    title = "Replicas that differ"
    kind = "replica"
    finds = "data-parallel replicas whose parameters differ"
    needs = (
        (lambda s: s.global_stats, "global_stats, or `probe anomalies` afterwards"),
        (lambda s: s.param_distribution or s.mv_distribution, "param_distribution or mv_distribution"),
    )
    collects = frozenset({"replicas"})
    compares = True

    def __init__(self, args: ReplicaArgs, rank: int, ops: Sequence[str]) -> None:  # noqa: ARG002
        self._ops = ops
        self._known: dict[str, tuple[int, frozenset[Key]]] = {}
        self._reporter = Reporter("AnomalyReplica", rank, "majority's")

    def judge(self, batch: Batch) -> Iterator[Finding]:
        if AGREEING not in batch.columns:
            self._known.pop(batch.signal, None)
            return
        at = self._begun(batch)
        op, values = self._number(batch)
        expected = np.full(len(at), np.nan)
        found = self._reporter.findings(batch, f"replica_{op}", at, values[at], expected)
        for finding, row in zip(found, at.tolist(), strict=True):
            copies, same, other = (int(batch.columns[name][row]) for name in (COPIES, AGREEING, OTHER))
            yield finding._replace(
                message=f"{finding.message} Rank {finding.rank} differs from rank {other}; of {copies} replicas "
                f"{same} {'has' if same == 1 else 'have'} these numbers."
            )

    def _begun(self, batch: Batch) -> npt.NDArray[np.int64]:
        """The rows in which this rank is not of the majority, and was when they came last. A row of which no copy was
        heard of (more came than there was room for) is not judged."""
        agreeing, copies = batch.columns[AGREEING], batch.columns[COPIES]
        odd = {batch.keys[row]: row for row in np.flatnonzero((2 * agreeing <= copies) & (copies >= 2)).tolist()}
        step, known = self._known.get(batch.signal, (-1, frozenset()))
        self._known[batch.signal] = batch.step, frozenset(odd)
        fresh = [row for key, row in odd.items() if key not in known or step > batch.step]
        return np.array(fresh, dtype=np.int64)

    def _number(self, batch: Batch) -> tuple[str, Array]:
        """A number that says something of each row: the first op that is collected."""
        for op in self._ops:
            if op in OPS and OPS[op].moment in batch.columns:
                return op, batch.op(op)
        return AGREEING, batch.columns[AGREEING]
