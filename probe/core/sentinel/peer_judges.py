"""Comparison of data-parallel ranks by the numbers of each before any reduction: whether they see the same data, and
whether one is unlike its peers.

Sources of the faults: ranks that read the same batches, because no sampler is distributed
(https://pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler); one rank whose data are not
prepared as those of the others (https://karpathy.github.io/2019/04/25/recipe/).
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np

from probe.core.checks.check import CheckFinding
from probe.core.checks.peer_ratios import BEYOND, LEAST, MASKS, SAME, STEPS_SAME, SUMMED, UNLIKE, PeerRatios
from probe.core.checks.streak import Streak
from probe.core.language import message
from probe.core.sentinel.rank_group import RankGroup, stacked
from probe.core.sentinel.rank_lines import Array, RankLine

LOSS, OWN_NORM = "loss", "norm of its own gradients"
"""Numbers that ranks are compared by."""
BATCHES_SAME = 3
"""Batches whose labels are equal on all ranks, and others each."""
STEPS_SAME_LOSS, STEPS_UNLIKE = 10, 10
"""Updates in a row after which equal losses, and unlike ranks, are found. Losses of small batches scatter more than
norms of gradients do."""
UNLIKE_TIMES = 3.0
"""Ratio to the median of its peers from which on a rank is unlike them; healthy runs with large batches have reached
1.19."""
LEFT_TIMES = 2.0
"""The same where earlier updates show how far ranks differ in a healthy state."""
LATEST = 12
"""Number of the latest updates, which are compared with the earlier ones."""
UNLIKE_OF_LATEST = 3
"""Number of these that must be unlike the earlier ones."""
FEWEST_EARLIER, MOST_EARLIER = 20, 256
"""Earlier updates that show how far ranks differ in a healthy state."""
SCATTERS = 8.0
"""Distance from the median of the earlier ratios (of logarithms), in units of their scatter, beyond which a ratio is
unlike them, if it lies beyond the farthest of them, too."""
LEAST_SCATTER = 0.05
"""Least value of the scatter."""
BEYOND_MEAN, SAME_LENGTH = 0.05, 1e-3
"""Relative differences of norms: of one that is no mean, and of rounding."""
ROW = np.zeros(1, np.int64)
"""The only row of the ratios of one number."""


class SameData:
    """Gradients that ranks have computed each for itself, of different batches; without them, their losses. Labels of
    the first batches are compared, too: dropout makes other gradients of the same data."""

    def __init__(self, group: RankGroup) -> None:
        self._group = group
        self._gradients, self._losses = Streak(STEPS_SAME), Streak(STEPS_SAME_LOSS - 1)
        self._last = float("nan")
        self._varies = False
        self._first: int | None = None
        """Step of the first update that was compared."""
        self._labels: set[int] | None = set()
        """Digests of labels that were equal on all ranks; None once data are known to be the same, or are not."""
        self._by_labels = False
        """True once labels have shown that data are the same: gradients and losses then say no more."""

    def judge(self, step: int, lines: Sequence[RankLine]) -> Iterator[CheckFinding]:
        """Yield a finding when ranks begin to see the same."""
        self._first = step if self._first is None else self._first
        labels = {line.labels for line in lines}
        if self._labels is not None:
            self._labels = self._labels | labels - {0} if len(labels) == 1 else None
            if self._labels is not None and len(self._labels) == BATCHES_SAME:
                self._labels, self._by_labels = None, True
                yield self._finding(message("labels"), step, self._first, lines)
        tables = stacked([line.unreduced for line in lines])
        if tables is not None:
            same = np.array_equal(tables, np.broadcast_to(tables[0], tables.shape), equal_nan=True)
            is_same = self._gradients.completes(same and bool(np.nan_to_num(tables[0]).any()), step)
            if is_same and not self._by_labels:
                self._labels = None
                yield self._finding(message("gradients before any reduction"), step, self._gradients.since, lines)
        else:
            yield from self._judge_losses(step, lines)

    def _judge_losses(self, step: int, lines: Sequence[RankLine]) -> Iterator[CheckFinding]:
        losses = [line.loss for line in lines]
        same = bool(np.isfinite(losses[0])) and all(loss == losses[0] for loss in losses)
        self._varies = same and (self._varies or (losses[0] != self._last and not np.isnan(self._last)))
        self._last = losses[0] if same else float("nan")
        if self._losses.completes(self._varies, step) and not self._by_labels:
            yield self._finding(message("losses"), step, self._losses.since, lines)

    def _finding(self, subject: str, step: int, since: int, lines: Sequence[RankLine]) -> CheckFinding:
        text = message(
            "{subject} are equal to the last digit on all ranks of a data-parallel group: they see the same data",
            subject=subject,
        )
        norm = float(np.sqrt(np.nansum(lines[0].reduced[:, 0] ** 2)))
        numbers = {"loss": lines[0].loss, "norm of the gradients": norm, "ranks": len(lines)}
        evidence = {name: number for name, number in numbers.items() if np.isfinite(number)}
        return CheckFinding(SAME, "warning", (), step, since, text, evidence, self._group.ranks)


class SameMasks:
    """Masks of dropout that are equal on ranks with different labels: their random numbers are the same."""

    def __init__(self, group: RankGroup) -> None:
        self._group, self._masks = group, set[int]()

    def judge(self, step: int, lines: Sequence[RankLine]) -> Iterator[CheckFinding]:
        """Yield a finding with the third mask that is the same on all ranks."""
        masks, labels = {line.masks for line in lines}, {line.labels for line in lines}
        if len(masks) > 1 or masks <= self._masks | {0} or len(labels) < len(lines):
            return
        self._masks |= masks
        if len(self._masks) == BATCHES_SAME:
            text = message("dropout hides the same units on all ranks, which have the same random numbers")
            yield CheckFinding(MASKS, "note", (), step, step, text, {"ranks": len(lines)}, self._group.ranks)


class SummedGradients:
    """Gradients of mean losses that ranks apply as the sum over ranks, in place of the mean."""

    def __init__(self, group: RankGroup) -> None:
        self._group, self._streak = group, Streak(STEPS_SAME)

    def judge(self, step: int, lines: Sequence[RankLine]) -> Iterator[CheckFinding]:
        """Yield a finding when gradients are known to be summed."""
        tables = stacked([line.unreduced for line in lines])
        summed = False
        if tables is not None and len(lines) > 1 and all(line.mean for line in lines):
            lengths, applied = tables[:, :, 0], lines[0].reduced[:, 0]
            read = np.isfinite(lengths).all(axis=0) & (applied > 0)
            # a mean is never longer than the mean length, and a sum never longer than the sum of lengths
            longer = applied > (1 + BEYOND_MEAN) * lengths.mean(axis=0)
            summed = bool(read.any() and (longer & (applied <= (1 + SAME_LENGTH) * lengths.sum(axis=0)))[read].all())
        if self._streak.completes(summed, step):
            text = message(
                "gradients of mean losses are summed over {ranks} ranks, and not divided by their number",
                ranks=len(lines),
            )
            yield CheckFinding(
                SUMMED, "warning", (), step, self._streak.since, text, {"ranks": len(lines)}, self._group.ranks
            )


class UnlikePeers:
    """Loss of a rank and the norm of its own gradients, against the median of its peers'."""

    def __init__(self, group: RankGroup) -> None:
        self._group = group
        self._series = {number: _Series(len(group.ranks)) for number in (LOSS, OWN_NORM)}

    def judge(self, step: int, lines: Sequence[RankLine]) -> Iterator[CheckFinding]:
        """Yield a finding when a rank becomes unlike its peers, by the first number that shows it."""
        yield from self._judge(LOSS, step, [line.loss for line in lines])
        tables = stacked([line.unreduced for line in lines])
        if tables is not None:
            squares = np.where(np.isnan(tables).any(axis=0), 0.0, tables)[:, :, 0] ** 2
            yield from self._judge(OWN_NORM, step, [*map(float, np.sqrt(squares.sum(axis=1)))])

    def _judge(self, number: str, step: int, values: list[float]) -> Iterator[CheckFinding]:
        median = statistics.median(values)
        if not all(math.isfinite(value) and value >= 0 for value in values) or median == 0:
            return
        sizes = [max(value, LEAST * median) for value in values]
        # the median of all names the odd one of three alone; of two, each is compared with the other
        medians = [median] * len(sizes) if len(sizes) > 2 else sizes[::-1]
        ratios = np.log(np.array(sizes) / medians)
        series, findings = self._series[number], []
        others = [peer_series for peer_series in self._series.values() if peer_series is not series]
        for place, since in series.add(step, ratios).items():
            if not any(peer_series.is_unlike[place] for peer_series in others):
                rank = self._group.ranks[place]
                findings.append(self._finding(number, step, rank, sizes[place], medians[place], since))
        # nothing shows which of two ranks is the odd one
        alone = len(self._group.ranks) > 2
        yield from findings if alone else (finding._replace(ranks=self._group.ranks) for finding in findings[:1])

    def _finding(self, number: str, step: int, rank: int, mine: float, median: float, since: int) -> CheckFinding:
        times, word = (mine / median, message("above")) if mine > median else (median / mine, message("below"))
        text = message(
            "rank {rank} is unlike its peers: the {number} is {times:.3g} times {word} their median",
            rank=rank,
            number=number,
            times=times,
            word=word,
        )
        evidence = {number: mine, "median of its peers": median, "times": times}
        return CheckFinding(UNLIKE, "warning", (), step, since, text, evidence, (rank,))


class _Series:
    """Logarithms of the ratios of ranks to their peers, update by update."""

    def __init__(self, ranks: int) -> None:
        self._usual = PeerRatios(ranks, MOST_EARLIER, FEWEST_EARLIER, LEAST_SCATTER)
        self._latest: deque[tuple[int, Array]] = deque(maxlen=LATEST)
        self._always = {(place, up): Streak(STEPS_UNLIKE) for place in range(ranks) for up in (True, False)}
        self.is_unlike = [False] * ranks
        """For each rank true from the update at which that was sure until the ratio has been back for some."""

    def add(self, step: int, ratios: Array) -> dict[int, int]:
        """Take the logarithms of an update; return by place among the ranks the step since which one is unlike its
        peers, once, when it is sure."""
        begun = {
            place: streak.since
            for (place, up), streak in self._always.items()
            if streak.completes((ratios[place] if up else -ratios[place]) > math.log(UNLIKE_TIMES), step)
        }
        if len(self._latest) == LATEST:
            self._usual.hold(ROW, self._latest[0][1][None])
        self._latest.append((step, ratios))
        steps = self._left()
        for place, since in begun.items():
            if not self.is_unlike[place]:
                self.is_unlike[place], steps[place] = True, since
        return steps

    def _left(self) -> dict[int, int]:
        """Return the steps at which ratios left where they were, if they have now."""
        latest = np.array([ratios for _, ratios in self._latest])
        far = (np.abs(latest) > math.log(LEFT_TIMES)).sum(axis=0)
        self.is_unlike = [was and is_far for was, is_far in zip(self.is_unlike, (far > 0).tolist(), strict=True)]
        if far.max() < UNLIKE_OF_LATEST:
            return {}
        distances, scatter, farthest = (numbers[0] for numbers in self._usual.departures(ROW, latest[-1:]))
        usual = latest[-1] - distances
        bound = np.fmax(np.fmax(SCATTERS * scatter, BEYOND * farthest), math.log(LEFT_TIMES))
        steps = {}
        for place in np.flatnonzero((far >= UNLIKE_OF_LATEST) & np.isfinite(distances)).tolist():
            for sign in (1, -1):
                ratios = sign * latest[:, place]
                beyond = np.flatnonzero(np.minimum(ratios, ratios - sign * usual[place]) > bound[place])
                if len(beyond) >= UNLIKE_OF_LATEST and not self.is_unlike[place]:
                    self.is_unlike[place], steps[place] = True, self._latest[int(beyond[0])][0]
        return steps
