"""Rule about data-parallel replicas whose parameters differ: a sign of silent data corruption.

:func:`odd_ones` compares the numbers of one tensor on several ranks, from their files or while training runs;
:class:`AnomalyReplica` reports the differences that ``global_stats`` finds.
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
"""Columns that ``global_stats`` adds to a signal in steps in which not all replicas agree: the number of ranks that
hold a copy of the row's tensor, the number of those, this one included, with this one's numbers, and the lowest rank
with other numbers (NaN if there is none)."""


CHANGES = 5
"""Number of sampled changes in a row after which a tensor that was equal on all ranks counts as replicated, where
nothing names the replicas. Parts of a tensor that begin alike (all 0, all 1) may have equal norms for an update or two,
as each element of Adam's first has the size of the learning rate."""


class Split(NamedTuple):
    """Disagreement between replicas of one tensor."""

    ranks: tuple[int, ...]
    """Ranks that differ from the majority; all ranks if there is none."""
    majority: tuple[int, ...]
    """Ranks with equal numbers that are more than half; empty if there are none (always between two)."""
    number: str
    """Name of the first number in which they disagree."""
    values: tuple[float, ...]
    """Values of that number on ``ranks``."""
    expected: float
    """Value of that number in the majority; NaN if there is none."""

    @property
    def text(self) -> str:
        """Text such as ``rank 2 differs from ranks 0,1,3`` or ``between ranks 0 and 1``."""
        if not self.majority:
            return f"between {_listed(self.ranks)}"
        differ = "differs" if len(self.ranks) == 1 else "differ"
        return f"{_listed(self.ranks)} {differ} from {_listed(self.majority)}"


def _listed(ranks: Sequence[int]) -> str:
    if len(ranks) == 2:
        return f"ranks {ranks[0]} and {ranks[1]}"
    return f"rank{'s' * (len(ranks) > 1)} {ranks_text(ranks)}"


def odd_ones(rows: Mapping[int, Mapping[str, float]], tolerance: float = 0.0) -> Split | None:
    """Find the ranks whose numbers of one tensor differ from the majority of its replicas; None if all agree.

    Args:
        rows: by rank, numbers of one (signal, key, step, part): moments, or ops from a file. Only numbers that all
            ranks have are compared.
        tolerance: relative difference up to which two numbers are equal. On machines of one kind, replicas and their
            numbers, written ones too, are equal to the last bit: 0 suits both. If ranks run on processors of different
            kinds, sums are added up in different orders: 1e-12 for moments in memory, 2e-6 for numbers of six digits.
    """
    names = [name for name in next(iter(rows.values()), {}) if all(name in row for row in rows.values())]
    versions: list[tuple[tuple[float, ...], list[int]]] = []
    for rank in sorted(rows):
        numbers = tuple(float(rows[rank][name]) for name in names)
        same = (ranks for version, ranks in versions if _alike(version, numbers, tolerance))
        (next(same, None) or _begun(versions, numbers)).append(rank)
    if len(versions) < 2:
        return None
    usual, holders = max(versions, key=lambda version: len(version[1]))
    has_majority = 2 * len(holders) > len(rows)
    odd = [rank for rank in sorted(rows) if not (has_majority and rank in holders)]
    against = usual if has_majority else versions[0][0]
    others = [version for version, ranks in versions if ranks is not (holders if has_majority else versions[0][1])]
    place = next(n for n in range(len(names)) if not _alike(others[0][n : n + 1], against[n : n + 1], tolerance))
    values = tuple(float(rows[rank][names[place]]) for rank in odd)
    majority = tuple(holders) if has_majority else ()
    return Split(tuple(odd), majority, names[place], values, usual[place] if has_majority else np.nan)


def _begun(versions: list[tuple[tuple[float, ...], list[int]]], numbers: tuple[float, ...]) -> list[int]:
    versions.append((numbers, []))
    return versions[-1][1]


def _alike(first: Sequence[float], second: Sequence[float], tolerance: float) -> bool:
    """Return whether all numbers are equal up to the tolerance, or both NaN."""
    return all(
        a == b or (a != a and b != b) or abs(a - b) <= tolerance * max(abs(a), abs(b)) < np.inf  # noqa: PLR0124 - NaN
        for a, b in zip(first, second, strict=True)
    )


def replicated(signal: str) -> bool:
    """Return whether healthy replicas hold equal tensors of ``signal``: parameters and optimizer state, but no
    activations, no gradients before they are reduced, and no tensors of communication."""
    return signal in ("param_origin", "param_updated") or signal not in SIGNALS


class ReplicaArgs(Section):
    """Data-parallel replicas whose parameters differ. Needs global_stats, and param_distribution or mv_distribution."""


class AnomalyReplica(About):
    """Report parameters and optimizer state of this rank that differ from those of its replicas.

    It judges the columns that ``global_stats`` adds while this rule is configured. A rank reports itself if it is not
    one of a majority that agrees: the odd one out among three or more, both of two. A lasting difference is reported
    when it begins.
    """

    Args = ReplicaArgs
    title = "Replicas that differ"
    why = "Replicas that differ stay apart, and the average of their gradients fits none of them."
    source = "https://github.com/pytorch/pytorch/issues/84803"
    sees = "parameters and optimizer state of data-parallel ranks"
    kind = "replica"
    finds = "finds data-parallel replicas whose parameters differ"
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
        findings = self._reporter.findings(batch, f"replica_{op}", at, values[at], expected)
        for finding, row in zip(findings, at.tolist(), strict=True):
            copies, same, other_rank = (int(batch.columns[name][row]) for name in (COPIES, AGREEING, OTHER))
            yield finding._replace(
                message=f"{finding.message} Rank {finding.rank} differs from rank {other_rank}; of {copies} replicas "
                f"{same} {'has' if same == 1 else 'have'} these numbers."
            )

    def _begun(self, batch: Batch) -> npt.NDArray[np.int64]:
        """Return the rows in which this rank has left the majority since they came last. A row without a received copy
        (there was no room for it) is not judged."""
        agreeing, copies = batch.columns[AGREEING], batch.columns[COPIES]
        named = np.isfinite(batch.columns[OTHER])  # a file of another writer may lack it in some rows
        odd = {
            batch.keys[row]: row for row in np.flatnonzero(named & (2 * agreeing <= copies) & (copies >= 2)).tolist()
        }
        step, odd_before = self._known.get(batch.signal, (-1, frozenset()))
        self._known[batch.signal] = batch.step, frozenset(odd)
        fresh = [row for key, row in odd.items() if key not in odd_before or step > batch.step]
        return np.array(fresh, dtype=np.int64)

    def _number(self, batch: Batch) -> tuple[str, Array]:
        """Return the number to report for each row: the first op that is collected."""
        for op in self._ops:
            if op in OPS and OPS[op].moment in batch.columns:
                return op, batch.op(op)
        return AGREEING, batch.columns[AGREEING]
