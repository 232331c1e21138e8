"""Comparison of a rank with its data-parallel peers, row by row, over the files of all ranks.

Peers see different data, so that their activations and own gradients differ. A rank departs from its peers if a row's
ratio to theirs leaves what it was in earlier steps: of hardware that computes wrongly now and then
(https://arxiv.org/abs/2502.12340), or of data that one rank alone prepares otherwise.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from math import exp
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from probe.core.analysis.diagnosis.check_findings import RankCheckFinding
from probe.core.analysis.diagnosis.passes import Passes
from probe.core.analysis.diagnosis.topology import Topology
from probe.core.checks.check import CheckFinding
from probe.core.checks.peer_ratios import LEAST, SAME, STEPS_SAME, UNLIKE, PeerRatios, log_ratios
from probe.core.checks.streak import Streak
from probe.core.moments import OPS, numels
from probe.core.naming import signal_of
from probe.core.records import Array, Batch, Key
from probe.core.rules.history import Alignment, Indices, measures
from probe.core.storage.batches import steps
from probe.core.storage.duckdb_reader import Rows
from probe.core.storage.layout import cell_name, ranks_text

Mask = npt.NDArray[np.bool_]

WINDOW, FEWEST = 32, 16
"""Earlier steps that a usual ratio is taken from, and how many of these there must be."""
QUIET = 10
"""Steps without a departure after which the next one is another finding."""
FEW = 16
"""Elements below which a norm may be near 0 by mere chance."""
ROUNDING = 1e-3
"""Part of the median root mean square of a step's gradients below which one is mostly rounding."""
MOST_PEERS = 16
"""Ranks that are compared with each other; a larger group is compared in parts."""
MOST = 20
"""Findings of a group at most, the first ones."""
OTHER_SIZE = 2.0
"""Score from which on a rank works on more or less than before."""
FORWARD, BACKWARD, OWN, REDUCED = "actv", "actv_grad", "grad_unreduced", "grad_reduced"
GRADIENTS = frozenset({BACKWARD, OWN, REDUCED})
BOUNDS: Mapping[str, Mapping[str, float]] = {
    FORWARD: {"norm": 8.0, "max": 12.0},
    BACKWARD: {"norm": 12.0, "max": 12.0},
    OWN: {"norm": 12.0, "max": 12.0},
    REDUCED: {"norm": 12.0},
}
"""Scores from which on a row departs, by signal and op; ``max`` is the largest magnitude. They are about 1.5 times the
highest scores in healthy runs, which were 5.3 and 7.8 of activations, 8.4 of their gradients, 7.2 of own gradients."""
FLOORS = {FORWARD: 0.05, BACKWARD: 0.1, OWN: 0.1, REDUCED: 0.1}
"""Least scatter of logarithms of ratios, by signal."""


class Departure(NamedTuple):
    """Row that has departed on a rank, in one step."""

    order: tuple[int, ...]
    """Place in the order of execution."""
    signal: str
    key: Key
    op: str
    rank: int
    distance: float
    """Logarithm of the ratio, less the usual one."""
    score: float


def peer_findings(passes: Passes, topology: Topology, steps: Sequence[int] = ()) -> list[RankCheckFinding]:
    """Return the departures of ranks from their peers, and ranks that see the same data, in order of step. Only groups
    that the run names are compared.

    Args:
        steps: those whose findings count, all if empty; earlier ones show what is usual.
    """
    groups = [group for group in topology.replica_groups() if topology.numbers(group[0]).replicas]
    parts = [part for group in groups for part in _parts(group)]
    signals = [signal for signal in BOUNDS if signal in passes.rows.signals]
    if not parts or not signals:
        return []
    function = PeerComparison(topology.has_experts)
    findings = [finding for part in passes.over_groups(function, parts, signals) for finding in part]
    selected = [finding for finding in findings if not steps or finding.step in steps]
    selected.sort(key=lambda finding: finding.step)
    return [RankCheckFinding(finding.ranks, finding) for finding in selected]


def _parts(group: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return a group in parts of about equal size that are compared each by itself."""
    number = -(-len(group) // MOST_PEERS)
    ends = [len(group) * n // number for n in range(number + 1)]
    return [group[first:last] for first, last in pairwise(ends)]


@dataclass(frozen=True)
class PeerComparison:
    """Comparison of the ranks of a group.

    Args:
        experts: whether peers hold different experts.
    """

    experts: bool

    def __call__(self, rows: Rows, ranks: tuple[int, ...]) -> list[CheckFinding]:
        """Compare ``ranks``, in the order of steps."""
        judges = {signal: SignalPeers(signal, ranks, self.experts) for signal in BOUNDS if signal in rows.signals}
        findings, last, sizes, same = list[CheckFinding](), -QUIET, BatchSizes(len(ranks)), Streak(STEPS_SAME)
        for sampled, (step, batches) in enumerate(_together(rows, ranks, tuple(judges)), 1):
            if same.completes(see_the_same(batches), step):
                findings.append(_same(step, same.since, ranks))
            if not sizes.are_usual(batches):
                continue
            departures = [
                departure for signal, of_signal in batches.items() for departure in judges[signal].judge(of_signal)
            ]
            if departures and sampled - last > QUIET and len(findings) < MOST:
                findings.append(_finding(step, sorted(departures, key=_in_order), ranks))
            last = sampled if departures else last
        return findings


def _together(rows: Rows, ranks: Sequence[int], signals: Sequence[str]) -> Iterator[tuple[int, dict[str, list[Batch]]]]:
    """Yield the steps that all ranks have, with the batches of each signal that all have, in the order of ranks."""
    merged = heapq.merge(*(steps(rows, rank, signals=signals) for rank in ranks), key=lambda stored: stored.step)
    for step, group in groupby(merged, key=lambda stored: stored.step):
        by_rank = {stored.rank: {batch.signal: batch for batch in stored.batches} for stored in group}
        if len(by_rank) == len(ranks):
            common = set(signals).intersection(*by_rank.values())
            yield step, {s: [by_rank[rank][s] for rank in ranks] for s in signals if s in common}


def see_the_same(batches: Mapping[str, Sequence[Batch]]) -> bool:
    """Return whether own gradients, and activations if there are any, are equal on all ranks, and not all zero."""
    inputs = batches.get(OWN)
    return inputs is not None and all(_are_equal(batches[signal]) for signal in (OWN, FORWARD) if signal in batches)


def _are_equal(batches: Sequence[Batch]) -> bool:
    first = batches[0]
    if any(batch.keys != first.keys or OPS["norm"].moment not in batch.columns for batch in batches):
        return False
    norms = [batch.op("norm") for batch in batches]
    return bool(norms[0].any()) and all(np.array_equal(norms[0], other) for other in norms[1:])


class BatchSizes:
    """Shares of the ranks in what a step works on: a rank with a shorter batch has other gradients, and is healthy."""

    def __init__(self, ranks: int) -> None:
        self._ratios = PeerRatios(ranks, WINDOW, FEWEST, FLOORS[FORWARD])

    def are_usual(self, batches: Mapping[str, Sequence[Batch]]) -> bool:
        """Return whether no rank has another share than before, as far as activations were recorded."""
        sizes_of_ranks = batches.get(FORWARD) or batches.get(BACKWARD)
        if not sizes_of_ranks:
            return True
        elements = np.array([[numels(batch.shapes).sum() for batch in sizes_of_ranks]])
        row, ratios = np.zeros(1, np.int64), log_ratios(np.log(np.maximum(elements, 1.0)))
        scores = self._ratios.departures(row, ratios).scores
        self._ratios.hold(row, ratios)
        return bool((scores < OTHER_SIZE).all())


class SignalPeers:
    """Rows of one signal on the ranks of a group.

    Args:
        experts: whether peers hold different experts.
    """

    def __init__(self, signal: str, ranks: Sequence[int], experts: bool = False) -> None:
        self._signal, self._ranks, self._experts = signal, tuple(ranks), experts
        self._ratios = {op: PeerRatios(len(ranks), WINDOW, FEWEST, FLOORS[signal]) for op in BOUNDS[signal]}
        self._alignments = [Alignment() for _ in ranks]
        self._places: dict[Key, int] = {}

    def judge(self, batches: Sequence[Batch]) -> Iterator[Departure]:
        """Yield the rows that depart in a step.

        Args:
            batches: of the signal, one of each rank.
        """
        first = batches[0]
        at = np.stack(
            [alignment.of(first.keys, batch.keys) for alignment, batch in zip(self._alignments, batches, strict=True)],
            axis=1,
        )
        present = np.flatnonzero((at >= 0).all(axis=1) & self._comparable(first))
        sizes = _sizes(batches, at[present])
        for op, ratios in self._ratios.items():
            values = _values(batches, at[present], op)
            if values is None:
                continue
            scaled = values / np.sqrt(sizes) if op == "norm" else values
            judged = np.flatnonzero(self._judged(scaled, sizes))
            rows = np.array([self._places.setdefault(first.keys[row], len(self._places)) for row in present[judged]])
            yield from self._departures(first, present[judged], op, rows.astype(np.int64), ratios, scaled[judged])

    def _comparable(self, batch: Batch) -> Mask:
        """Mask of the rows about numbers that peers hold each for itself."""
        mask = measures(batch.dtypes).copy()
        for row, coverage in enumerate(batch.coverage):
            # each rank has another shard of a reduced gradient
            mask[row] &= coverage is None or not (coverage.term or self._signal == REDUCED)
        if self._experts:
            mask &= np.array(["experts" not in key.name for key in batch.keys], dtype=bool)
        return mask

    def _judged(self, values: Array, sizes: Array) -> Mask:
        """Mask of the rows whose size has a meaning on all ranks."""
        lowest = values.max(axis=1) if self._signal == REDUCED else values.min(axis=1)
        mask: Mask = np.isfinite(values).all(axis=1) & (lowest > 0) & (sizes.min(axis=1) >= FEW)
        if self._signal in GRADIENTS and mask.any():
            levels = np.median(values, axis=1)
            mask &= levels > ROUNDING * np.median(levels[mask])
        return mask

    def _departures(
        self,
        batch: Batch,
        at: Indices,
        op: str,
        rows: npt.NDArray[np.int64],
        ratios: PeerRatios,
        values: Array,
    ) -> Iterator[Departure]:
        least = LEAST * np.median(values, axis=1, keepdims=True) if len(values) else values
        logarithms = log_ratios(np.log(np.maximum(values, np.maximum(least, np.finfo(np.float64).tiny))))
        departures = ratios.departures(rows, logarithms)
        ratios.hold(rows, logarithms)
        scores = departures.scores
        for row in np.flatnonzero((scores > BOUNDS[self._signal][op]).any(axis=1)):
            place = int(scores[row].argmax())
            key, distance = batch.keys[at[row]], float(departures.distances[row, place])
            order = key.micro_step, signal_of(self._signal).phase, [*BOUNDS].index(self._signal), int(at[row])
            yield Departure(order, self._signal, key, op, self._ranks[place], distance, float(scores[row, place]))


def _in_order(departure: Departure) -> tuple[tuple[int, ...], bool]:
    return departure.order, departure.op != "norm"


def _sizes(batches: Sequence[Batch], at: Indices) -> Array:
    """Return the numbers of elements, ``rows x ranks``."""
    return np.stack([numels(batch.shapes)[at[:, n]] for n, batch in enumerate(batches)], axis=1)


def _values(batches: Sequence[Batch], at: Indices, op: str) -> Array | None:
    """Return an op of the rows, ``rows x ranks``; None if it was not collected on all ranks."""
    ops = ("min", "max") if op == "max" else (op,)
    if any(OPS[name].moment not in batch.columns for batch in batches for name in ops):
        return None
    columns = [np.max([np.abs(batch.op(name)) for name in ops], axis=0) for batch in batches]
    stacked: Array = np.stack([column[at[:, n]] for n, column in enumerate(columns)], axis=1)
    return stacked


def _same(step: int, since: int, ranks: tuple[int, ...]) -> CheckFinding:
    text = "gradients before any reduction are equal on all ranks of a data-parallel group: they see the same data"
    return CheckFinding(SAME, "warning", (), step, since, text, {"ranks": float(len(ranks))}, ranks)


def _finding(step: int, departures: Sequence[Departure], ranks: tuple[int, ...]) -> CheckFinding:
    """Return the finding about the rows that depart in a step, in the order of execution."""
    first = departures[0]
    name, number = cell_name(first.key), "norm" if first.op == "norm" else "largest magnitude"
    times = f"{exp(abs(first.distance)):.3g} times {'above' if first.distance > 0 else 'below'} what is usual"
    if len(ranks) > 2:
        text = f"rank {first.rank} departs from its peers: the ratio of the {number} of {name} to theirs is {times}"
    else:
        witness = next(rank for rank in ranks if rank != first.rank)
        text = f"ranks {ranks_text(ranks)} depart from each other: "
        text += f"the ratio of the {number} of {name} on rank {first.rank} to that on rank {witness} is {times}"
    rows = len({(departure.signal, departure.key) for departure in departures})
    if rows > 1:
        text += f"; {rows} rows do so in this step"
    evidence = {"times": exp(abs(first.distance)), "scatters": first.score, "rows": float(rows)}
    # nothing shows which of two ranks is the odd one
    blamed = (first.rank,) if len(ranks) > 2 else ranks
    return CheckFinding(UNLIKE, "warning", (name,), step, step, text, evidence, blamed)
