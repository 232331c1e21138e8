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
from probe.core.checks.streak import Streak
from probe.core.sentinel.rank_group import RankGroup, stacked
from probe.core.sentinel.rank_lines import RankLine

SAME, UNLIKE = "same-data", "rank-unlike-peers"
"""Names of the findings."""
STEPS_SAME, STEPS_SAME_LOSS, STEPS_UNLIKE = 5, 10, 10
"""Updates in a row after which each is found. Losses of small batches scatter more than norms of gradients do."""
UNLIKE_TIMES = 3.0
"""Ratio to the median of its peers from which on a rank is unlike them; healthy runs with large batches have reached
1.19."""
LEFT_TIMES = 2.0
"""The same where earlier updates show how far ranks differ in a healthy state."""
LATEST, UNLIKE_OF_LATEST = 5, 3
"""Latest updates, and how many of these must be unlike the earlier ones."""
FEWEST_EARLIER, MOST_EARLIER = 20, 256
"""Earlier updates that show how far ranks differ in a healthy state."""
SCATTERS, BEYOND, LEAST_SCATTER = 8.0, 1.3, 0.05
"""A ratio is unlike the earlier ones if the logarithm has gone further from their median than the first times their
scatter and than the second times the farthest of them; the scatter is at least the third."""
LEAST = 1e-6
"""Part of the median that stands for a loss of 0, which has no logarithm."""
DEVIATION = 1.4826
"""Standard deviation by the median deviation, of normal numbers."""


class SameData:
    """Gradients that ranks have computed each for itself, of different batches; without them, their losses."""

    def __init__(self, group: RankGroup) -> None:
        self._group = group
        self._gradients, self._losses = Streak(STEPS_SAME), Streak(STEPS_SAME_LOSS - 1)
        self._last = float("nan")
        self._varies = False

    def judge(self, step: int, lines: Sequence[RankLine]) -> Iterator[CheckFinding]:
        """Yield a finding when ranks begin to see the same."""
        tables = stacked([line.unreduced for line in lines])
        if tables is not None:
            same = np.array_equal(tables, np.broadcast_to(tables[0], tables.shape), equal_nan=True)
            if self._gradients.completes(same and bool(np.nan_to_num(tables[0]).any()), step):
                yield self._finding("gradients before any reduction", step, self._gradients.since, lines)
        else:
            yield from self._judge_losses(step, lines)

    def _judge_losses(self, step: int, lines: Sequence[RankLine]) -> Iterator[CheckFinding]:
        losses = [line.loss for line in lines]
        same = bool(np.isfinite(losses[0])) and all(loss == losses[0] for loss in losses)
        self._varies = same and (self._varies or (losses[0] != self._last and not np.isnan(self._last)))
        self._last = losses[0] if same else float("nan")
        if self._losses.completes(self._varies, step):
            yield self._finding("losses", step, self._losses.since, lines)

    def _finding(self, what: str, step: int, since: int, lines: Sequence[RankLine]) -> CheckFinding:
        text = f"{what} are equal to the last digit on all ranks of a data-parallel group: they see the same data"
        norm = float(np.sqrt(np.nansum(lines[0].reduced[:, 0] ** 2)))
        numbers = {"loss": lines[0].loss, "norm of the gradients": norm, "ranks": len(lines)}
        evidence = {name: number for name, number in numbers.items() if np.isfinite(number)}
        return CheckFinding(SAME, "warning", (), step, since, text, evidence, self._group.ranks)


class UnlikePeers:
    """Loss of a rank and the norm of its own gradients, against the median of its peers'."""

    def __init__(self, group: RankGroup) -> None:
        self._group = group
        self._series: dict[tuple[str, int], _Series] = {}

    def judge(self, step: int, lines: Sequence[RankLine]) -> Iterator[CheckFinding]:
        """Yield a finding when a rank becomes unlike its peers, by the first number that shows it."""
        yield from self._judge("loss", step, [line.loss for line in lines])
        tables = stacked([line.unreduced for line in lines])
        if tables is not None:
            squares = np.where(np.isnan(tables).any(axis=0), 0.0, tables)[:, :, 0] ** 2
            yield from self._judge("norm of its own gradients", step, [*map(float, np.sqrt(squares.sum(axis=1)))])

    def _judge(self, what: str, step: int, values: list[float]) -> Iterator[CheckFinding]:
        findings = []
        for place, rank in enumerate(self._group.ranks):
            # the median of all names the odd one of three; of two, each is compared with the other
            mine, median = values[place], statistics.median(values) if len(values) > 2 else values[1 - place]
            if not (math.isfinite(mine) and math.isfinite(median) and mine >= 0 < median):
                continue
            series = self._series.setdefault((what, rank), _Series())
            since = series.add(step, math.log(max(mine, LEAST * median) / median))
            others = (one for (_, of), one in self._series.items() if of == rank and one is not series)
            if since is not None and not any(one.is_unlike for one in others):
                findings.append(self._finding(what, step, rank, mine, median, since))
        # nothing shows which of two ranks is the odd one
        alone = len(self._group.ranks) > 2
        yield from findings if alone else (each._replace(ranks=self._group.ranks) for each in findings[:1])

    def _finding(self, what: str, step: int, rank: int, mine: float, median: float, since: int) -> CheckFinding:
        times, word = (mine / median, "above") if mine > median else (median / max(mine, LEAST * median), "below")
        text = f"rank {rank} is unlike its peers: the {what} is {times:.3g} times {word} their median"
        evidence = {what: mine, "median of its peers": median, "times": times}
        return CheckFinding(UNLIKE, "warning", (), step, since, text, evidence, (rank,))


class _Series:
    """Logarithm of the ratio of a rank to its peers, update by update."""

    def __init__(self) -> None:
        self._earlier: deque[float] = deque(maxlen=MOST_EARLIER)
        self._latest: deque[tuple[int, float]] = deque(maxlen=LATEST)
        self._always = {up: Streak(STEPS_UNLIKE) for up in (True, False)}
        self.is_unlike = False
        """True from the update at which that was sure until the ratio has been back for some."""

    def add(self, step: int, ratio: float) -> int | None:
        """Take a logarithm; return the step since which the rank is unlike its peers, once, when it is sure."""
        signed = {True: ratio, False: -ratio}
        begun = [
            up for up, streak in self._always.items() if streak.completes(signed[up] > math.log(UNLIKE_TIMES), step)
        ]
        if len(self._latest) == LATEST:
            self._earlier.append(self._latest[0][1])
        self._latest.append((step, ratio))
        since = self._left()
        if since is None and begun and not self.is_unlike:
            self.is_unlike, since = True, self._always[begun[0]].since
        return since

    def _left(self) -> int | None:
        """Return the step at which the ratio left where it was, if it has now."""
        far = sum(abs(ratio) > math.log(LEFT_TIMES) for _, ratio in self._latest)
        self.is_unlike &= far > 0
        if far < UNLIKE_OF_LATEST or len(self._earlier) < FEWEST_EARLIER:
            return None
        earlier = np.array(self._earlier)
        usual = float(np.median(earlier))
        distances = np.abs(earlier - usual)
        scatter = max(LEAST_SCATTER, DEVIATION * float(np.median(distances)))
        bound = max(SCATTERS * scatter, BEYOND * float(distances.max()), math.log(LEFT_TIMES))
        for sign in (1, -1):
            beyond = [step for step, one in self._latest if min(sign * one, sign * (one - usual)) > bound]
            if len(beyond) >= UNLIKE_OF_LATEST:
                begins = not self.is_unlike
                self.is_unlike = True
                return beyond[0] if begins else None
        return None
