"""Comparison of the ranks of a group, from their lines: without talk between them, and without files.

Sources of the faults: BLOOM's layer norms, which drifted apart over tensor-parallel ranks
(https://github.com/bigscience-workshop/bigscience/blob/master/train/tr11-176B-ml/chronicles.md); replicas that a bit
flip has set apart (https://arxiv.org/abs/2102.11245); ranks that read the same batches, because no sampler is
distributed (https://pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from probe.core.checks.check import CheckFinding
from probe.core.sentinel.rank_lines import Array, RankLine

DIFFER, SAME, UNLIKE = "replicas-differ", "same-data", "rank-unlike-peers"
"""Names of the findings."""
REMEDIES: Mapping[str, str] = {
    DIFFER: "Look for code that changes parameters or gradients on one rank alone (clipping, an update before the "
    "reduction, a model called around its wrapper), then at that rank's hardware.",
    SAME: "Give each rank its own part of the data: a DistributedSampler, a shard of the files, a seed with the rank "
    "in it.",
    UNLIKE: "Look at that rank's data and at its hardware: the others agree with each other.",
}
"""Advice, by finding."""
EQUAL = 1e-9
"""Relative difference of numbers of the same bytes: only the order of a sum may differ."""
EQUAL_SHARE = 1e-6
"""The same for numbers that ranks have computed each for itself."""
ALIKE_AT_FIRST, LEAPS = 1e-3, 10.0
"""Without marks: a parameter that differed by at most the first over the first updates must not differ by more than the
second times as much later."""
FIRST_UPDATES = 5
UNLIKE_TIMES = 3.0
"""Ratio to the median of its peers from which on a rank is unlike them; healthy runs have reached 1.19."""
STEPS_DIFFER, STEPS_SAME, STEPS_SAME_LOSS, STEPS_UNLIKE, STEPS_UNLIKE_LOSS = 1, 5, 10, 3, 10
"""Updates in a row after which each is found. Losses of small batches scatter more than norms of gradients do."""
MOST_PENDING = 256
"""Updates that wait for the lines of other ranks; of more, the oldest are dropped."""
MOST_NAMED = 3
Role = Literal["data", "tensor"]


class RankGroup(NamedTuple):
    """Ranks of one node that are compared."""

    role: Role
    ranks: tuple[int, ...]
    names: tuple[str, ...]
    """Names of the parameters."""
    split: tuple[bool, ...] = ()
    """For each parameter whether each tensor-parallel rank has another part; empty if nothing marks it."""


class GroupComparison:
    """Comparison of the lines of one group. A finding is returned once, until what it is about has ended.

    Args:
        group: two ranks or more.
    """

    def __init__(self, group: RankGroup) -> None:
        self.group = group
        self.judged = 0
        """Updates that were compared."""
        self._pending: OrderedDict[tuple[int, int], dict[int, RankLine]] = OrderedDict()
        judges = (_Replicas, _SameData, _UnlikePeers) if group.role == "data" else (_TensorReplicas,)
        self._judges = [judge(group) for judge in judges]

    def add(self, rank: int, lines: Sequence[RankLine]) -> list[CheckFinding]:
        """Take further lines of a rank; return the findings in updates of which all ranks' lines are there."""
        found: list[CheckFinding] = []
        for line in lines:
            waiting = self._pending.setdefault((line.optimizer, line.step), {})
            waiting[rank] = line
            if len(waiting) == len(self.group.ranks):
                del self._pending[line.optimizer, line.step]
                found += self._compare(line.step, [waiting[each] for each in self.group.ranks])
        while len(self._pending) > MOST_PENDING:
            self._pending.popitem(last=False)
        return found

    def _compare(self, step: int, lines: Sequence[RankLine]) -> Iterator[CheckFinding]:
        if len({line.reduced.shape for line in lines}) > 1:
            return
        self.judged += 1
        for judge in self._judges:
            yield from judge.judge(step, lines)


class _Streak:
    """Updates in a row at which the same was so."""

    def __init__(self, needed: int) -> None:
        self._needed, self._length, self._reported = needed, 0, False
        self.since = 0

    def reached(self, step: int, holds: bool) -> bool:
        """Count an update; return whether its like has now come so often that it is to be reported."""
        if not holds:
            self._length, self._reported = 0, False
            return False
        self._length += 1
        self.since = step if self._length == 1 else self.since
        due = self._length >= self._needed and not self._reported
        self._reported |= due
        return due


class _Replicas:
    """Reduced gradients of a data-parallel group, which are the same bytes on all its ranks."""

    equal = EQUAL

    def __init__(self, group: RankGroup) -> None:
        self._group, self._streak = group, _Streak(STEPS_DIFFER)

    def judge(self, step: int, lines: Sequence[RankLine]) -> Iterator[CheckFinding]:
        tables = np.stack([line.reduced for line in lines])
        wrong = self._wrong(_deviations(tables))
        if self._streak.reached(step, bool(wrong.any())):
            yield self._finding(step, tables, wrong)

    def _wrong(self, deviations: Array) -> npt.NDArray[np.bool_]:
        """Return the mask of the parameters that differ between ranks."""
        return deviations > self.equal

    def _finding(self, step: int, tables: Array, wrong: npt.NDArray[np.bool_]) -> CheckFinding:
        places = np.flatnonzero(wrong)
        names = [self._group.names[place] for place in places[:MOST_NAMED]]
        ranks = _unlike_majority(self._group.ranks, tables[:, places], self.equal)
        what = "data-parallel replicas" if self._group.role == "data" else "tensor-parallel ranks"
        more = f" and {len(places) - len(names)} more" if len(places) > len(names) else ""
        text = f"{what} apply different gradients to {', '.join(names)}{more}, which must be equal"
        norms = tables[:, places[0], 0]
        evidence = {"lowest norm": float(norms.min()), "highest norm": float(norms.max()), "parameters": len(places)}
        return CheckFinding(DIFFER, "critical", tuple(names), step, self._streak.since, text, evidence, ranks)


class _TensorReplicas(_Replicas):
    """Gradients of parameters that are not split over a tensor-parallel group: those that are not marked so or, without
    marks, those that were equal over the first updates, and not constant."""

    equal = EQUAL_SHARE

    def __init__(self, group: RankGroup) -> None:
        super().__init__(group)
        self._marked = bool(group.split) and len(group.split) == len(group.names)
        self._updates = 0
        self._least: Array = np.full(len(group.names), np.nan)
        self._bound: Array = np.full(len(group.names), np.inf)
        self._first: Array | None = None
        self._moved = np.zeros(len(group.names), bool)

    def judge(self, step: int, lines: Sequence[RankLine]) -> Iterator[CheckFinding]:
        if len(lines[0].reduced) != len(self._group.names):
            return
        if not self._marked and self._updates < FIRST_UPDATES:
            self._learn(np.stack([line.reduced for line in lines]))
            return
        yield from super().judge(step, lines)

    def _learn(self, tables: Array) -> None:
        deviations = _deviations(tables)
        self._least = np.fmax(self._least, deviations)
        self._first = tables[0] if self._first is None else self._first
        self._moved |= (tables[0] != self._first).any(axis=1) & ~np.isnan(tables[0]).any(axis=1)
        self._updates += 1
        if self._updates == FIRST_UPDATES:
            alike = (self._least <= ALIKE_AT_FIRST) & self._moved
            self._bound = np.where(alike, np.maximum(EQUAL_SHARE, LEAPS * self._least), np.inf)

    def _wrong(self, deviations: Array) -> npt.NDArray[np.bool_]:
        if self._marked:
            return (deviations > EQUAL_SHARE) & ~np.array(self._group.split, bool)
        return deviations > self._bound


class _SameData:
    """Gradients that ranks have computed each for itself, of different batches; without them, their losses."""

    def __init__(self, group: RankGroup) -> None:
        self._group = group
        self._gradients, self._losses = _Streak(STEPS_SAME), _Streak(STEPS_SAME_LOSS - 1)
        self._last = float("nan")
        self._varies = False

    def judge(self, step: int, lines: Sequence[RankLine]) -> Iterator[CheckFinding]:
        tables = [line.unreduced for line in lines if line.unreduced is not None]
        if len(tables) == len(lines):
            same = all(_is_same(tables[0], table) for table in tables[1:])
            if self._gradients.reached(step, same and bool(np.nan_to_num(tables[0]).any())):
                yield self._finding("gradients before any reduction", step, self._gradients.since, lines)
        else:
            yield from self._judge_losses(step, lines)

    def _judge_losses(self, step: int, lines: Sequence[RankLine]) -> Iterator[CheckFinding]:
        losses = [line.loss for line in lines]
        same = bool(np.isfinite(losses[0])) and all(loss == losses[0] for loss in losses)
        self._varies = same and (self._varies or (losses[0] != self._last and not np.isnan(self._last)))
        self._last = losses[0] if same else float("nan")
        if self._losses.reached(step, self._varies):
            yield self._finding("losses", step, self._losses.since, lines)

    def _finding(self, what: str, step: int, since: int, lines: Sequence[RankLine]) -> CheckFinding:
        text = f"{what} are equal to the last digit on all ranks of a data-parallel group: they see the same data"
        norm = float(np.sqrt(np.nansum(lines[0].reduced[:, 0] ** 2)))
        numbers = {"loss": lines[0].loss, "norm of the gradients": norm, "ranks": len(lines)}
        evidence = {name: number for name, number in numbers.items() if np.isfinite(number)}
        return CheckFinding(SAME, "warning", (), step, since, text, evidence, self._group.ranks)


class _UnlikePeers:
    """Norm of a rank's own gradients, against the median of its peers'; without them, its loss."""

    def __init__(self, group: RankGroup) -> None:
        self._group = group
        self._norms = {(rank, up): _Streak(STEPS_UNLIKE) for rank in group.ranks for up in (True, False)}
        self._losses = {(rank, up): _Streak(STEPS_UNLIKE_LOSS) for rank in group.ranks for up in (True, False)}

    def judge(self, step: int, lines: Sequence[RankLine]) -> Iterator[CheckFinding]:
        tables = [line.unreduced for line in lines if line.unreduced is not None]
        if len(tables) == len(lines):
            values = [float(np.sqrt(np.nansum(table[:, 0] ** 2))) for table in tables]
            streaks, what = self._norms, "norm of its own gradients"
        else:
            values, streaks, what = [line.loss for line in lines], self._losses, "loss"
        found = [each for place in range(len(values)) for each in self._of_rank(step, place, values, streaks, what)]
        yield from self._joined(found) if len(self._group.ranks) == 2 else found

    def _of_rank(
        self, step: int, place: int, values: Sequence[float], streaks: Mapping[tuple[int, bool], _Streak], what: str
    ) -> Iterator[CheckFinding]:
        rank, mine = self._group.ranks[place], values[place]
        median = float(np.median([value for other, value in enumerate(values) if other != place]))
        comparable = bool(np.isfinite([mine, median]).all()) and mine > 0 and median > 0
        for up in (True, False):
            times = (mine / median if up else median / mine) if comparable else 0.0
            streak = streaks[rank, up]
            if streak.reached(step, times > UNLIKE_TIMES):
                word = "above" if up else "below"
                text = f"rank {rank} is unlike its peers: the {what} is {times:.3g} times {word} their median"
                evidence = {what: mine, "median of its peers": median, "times": times}
                yield CheckFinding(UNLIKE, "warning", (), step, streak.since, text, evidence, (rank,))

    def _joined(self, found: Sequence[CheckFinding]) -> Iterator[CheckFinding]:
        """Yield one finding about both of two ranks: nothing shows which of them is the odd one."""
        for finding in found[:1]:
            yield finding._replace(ranks=self._group.ranks)


def _deviations(tables: Array) -> Array:
    """Return for each parameter how far norms and sums differ between ranks, as a part of the largest number; 0 where a
    number is missing or not finite: the loss and other ranks show that.

    Args:
        tables: ``ranks x parameters x 2``.
    """
    if (tables == tables[0]).all():
        return np.zeros(tables.shape[1])
    with np.errstate(invalid="ignore", over="ignore"):
        spread = tables.max(axis=0) - tables.min(axis=0)
        largest = np.abs(tables).max(axis=(0, 2))
        parts = spread.max(axis=1) / np.where(largest > 0, largest, 1.0)
    return np.where(np.isfinite(parts), parts, 0.0)


def _unlike_majority(ranks: Sequence[int], tables: Array, equal: float) -> tuple[int, ...]:
    """Return the ranks whose numbers are not those of more than half of the ranks; all where there is no such half."""
    alike = [[bool((_deviations(np.stack([one, other])) <= equal).all()) for other in tables] for one in tables]
    most = max(alike, key=sum)
    if sum(most) * 2 <= len(ranks):
        return tuple(ranks)
    return tuple(rank for rank, same in zip(ranks, most, strict=True) if not same)


def _is_same(one: Array, other: Array) -> bool:
    return bool(np.array_equal(one, other, equal_nan=True))
