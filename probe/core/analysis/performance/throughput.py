"""Throughput over a run: stable stretches, the first healthy one among them, and drops below it.

The standard is fixed: the first healthy stretch of the run. An average that moves on would take a drop for the new
standard after a while.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from math import ceil, exp, isfinite, nan
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from probe.core.robust import MAD_TO_SIGMA

Numbers = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Steps = npt.NDArray[np.int64]

WARM_UP = 20
"""Steps at the beginning of a process that are not judged; at most a quarter of all."""
FEWEST, MOST = 10, 200
"""Limits of the steps of a window; between them it has one in ``WINDOWS`` of all steps."""
WINDOWS = 200
STABLE = 4
"""Consecutive windows, each half over the one before, that make a stretch."""
SPREAD = 1.1
"""Largest ratio between the medians of the windows of a stable stretch."""
HEALTHY = 0.8
"""Least part of the second best stable throughput that a healthy stretch has."""
DROP = 0.8
"""Part of the healthy throughput below which a drop begins."""
BACK = 0.9
"""Part of the healthy throughput from which on a drop is over."""
NOISE = 4.0
"""Standard deviations, of the difference of a window's median and the healthy one, by which a drop lies below at
least."""
ERROR = 0.05
"""Largest relative error of a window's median: where steps are noisier, windows are larger."""
MEDIAN_ERROR = 1.2533
"""Ratio of the standard deviation of a median to that of a mean, of normal numbers."""
UTILIZATION_WEIGHT, THROUGHPUT_WEIGHT = 0.6, 0.4
RATINGS = ((90.0, "Excellent"), (80.0, "Good"), (70.0, "Fair"), (60.0, "Poor"))
"""Least score of each rating."""
LOWEST = "Critical"
LOW = ("Poor", LOWEST)
"""Ratings that are reported."""
FORMULA = "0.6 * gpu_utilization + 0.4 * 100 * min(average_throughput / best_throughput, 1)"


class Stretch(NamedTuple):
    """Stretch of steps with one level of throughput."""

    first_step: int
    last_step: int
    speed: float
    """Median."""


class Drop(NamedTuple):
    """Stretch in which throughput lies below the healthy one."""

    first_step: int
    last_step: int
    speed: float
    """Median."""
    expected: float
    """Throughput of the healthy stretch."""
    factor: float
    """Ratio of the expected throughput to the one there was."""
    lasting: bool
    """True if it goes on until the last step."""


class ThroughputLevels(NamedTuple):
    """Judgement of a throughput."""

    healthy: Stretch | None
    """First healthy stretch, the standard; None if no stretch is stable."""
    best: Stretch | None
    """Stable stretch with the second highest throughput, or the first healthy one if that is higher: one stretch of
    steps that had little to do is no standard."""
    drops: tuple[Drop, ...]
    slow_start: Drop | None
    """Steps before the first healthy stretch, if they were as slow as a drop: no drop, since nothing was faster
    before."""
    now: float
    """Median of the last window; NaN if there is none."""


NOTHING = ThroughputLevels(None, None, (), None, float("nan"))


def judged(steps: Steps, speeds: Numbers, usual: Flags) -> ThroughputLevels:
    """Judge the throughput of each step.

    Args:
        steps: ascending.
        speeds: throughput of each step; what is no positive number is left out.
        usual: False for the steps that are left out, such as those with an evaluation.
    """
    judged_steps = usual & np.isfinite(speeds) & (speeds > 0)
    if 2 * judged_steps.sum() < len(steps):  # there is no usual step
        judged_steps = np.isfinite(speeds) & (speeds > 0)
    warm_up = min(WARM_UP, len(steps) // 4)
    judged_steps[:warm_up] = False
    steps, speeds = steps[judged_steps], speeds[judged_steps]
    noise = _noise(speeds)
    size = _size(len(steps), noise)
    if len(steps) < size:
        return NOTHING
    windows = _Windows(steps, speeds, size, noise)
    stable = list(windows.stable())
    now = float(np.median(speeds[-size:]))
    if not stable:
        return NOTHING._replace(now=now)
    ordered = sorted(stable, key=windows.level, reverse=True)
    usual_best = next((at for at in ordered if abs(at - ordered[0]) >= STABLE), ordered[0])
    at = next(at for at in stable if windows.level(at) >= HEALTHY * windows.level(usual_best))
    healthy, best = windows.stretch(at), windows.stretch(max(at, usual_best, key=windows.level))
    limit = windows.limit(at)
    drops = [windows.drop(first, last, healthy.speed) for first, last in windows.below(limit, BACK * healthy.speed)]
    slow = [drop for drop in drops if drop.first_step < healthy.first_step]
    late = tuple(drop for drop in drops if drop.first_step > healthy.first_step)
    return ThroughputLevels(healthy, best, late, slow[0] if slow else None, now)


def _noise(speeds: Numbers) -> float:
    """Return the relative standard deviation from step to step, which levels and slopes do not change."""
    if len(speeds) < 2:
        return 0.0
    return MAD_TO_SIGMA * float(np.median(np.abs(np.diff(np.log(speeds))))) / 2**0.5


def _size(steps: int, noise: float) -> int:
    """Return the steps of a window."""
    least = max(steps // WINDOWS, ceil((MEDIAN_ERROR * noise / ERROR) ** 2))
    return max(FEWEST, min(MOST, least, steps // STABLE))


def stable_level(speeds: Numbers) -> float | None:
    """Return the median of ``speeds`` if they are stable: the medians of four windows, each half over the one before,
    agree; else None."""
    size = 2 * len(speeds) // (STABLE + 1)
    if size < 2:
        return None
    medians = [float(np.median(speeds[n * size // 2 : n * size // 2 + size])) for n in range(STABLE)]
    return float(np.median(speeds)) if max(medians) <= SPREAD * min(medians) else None


class _Windows:
    """Windows of steps, each half over the one before, with their medians."""

    def __init__(self, steps: Steps, speeds: Numbers, size: int, noise: float) -> None:
        self._steps, self._speeds, self._size, self._stride = steps, speeds, size, size // 2
        self._noise = noise
        views = np.lib.stride_tricks.sliding_window_view(speeds, size)[:: self._stride]
        self._medians = np.median(views, axis=1)

    def stable(self) -> Iterator[int]:
        """Yield the numbers of the windows with which a stable stretch begins."""
        for at in range(len(self._medians) - STABLE + 1):
            some = self._medians[at : at + STABLE]
            if some.max() <= SPREAD * some.min():
                yield at

    def _part(self, at: int) -> slice:
        return slice(at * self._stride, (at + STABLE - 1) * self._stride + self._size)

    def level(self, at: int) -> float:
        return float(np.median(self._speeds[self._part(at)]))

    def stretch(self, at: int) -> Stretch:
        steps = self._steps[self._part(at)]
        return Stretch(int(steps[0]), int(steps[-1]), self.level(at))

    def limit(self, at: int) -> float:
        """Return the throughput below which a drop begins: clearly below the stretch that begins with window ``at``."""
        part = self._part(at)
        error = MEDIAN_ERROR * self._noise * (1 / self._size + 1 / (part.stop - part.start)) ** 0.5
        return self.level(at) * min(DROP, exp(-NOISE * error))

    def below(self, limit: float, back: float) -> Iterator[tuple[int, int]]:
        """Yield the first and the last window of each drop."""
        low, states = False, []
        for median in self._medians.tolist():
            low = median < limit or (low and median < back)
            states.append(low)
        for is_low, group in groupby(enumerate(states), key=lambda pair: pair[1]):
            numbers = [number for number, _ in group]
            if is_low:
                yield numbers[0], numbers[-1]

    def drop(self, first: int, last: int, expected: float) -> Drop:
        """Return the drop of the windows from ``first`` to ``last``, from its very first to its very last step."""
        begin, end = first * self._stride, last * self._stride + self._size
        level = float(np.median(self._speeds[begin:end]))
        if first > 0:
            low, high = max(0, begin - self._stride), min(begin + self._size, end)
            begin = low + _change(self._speeds[low:high], expected, level)
        lasting = last == len(self._medians) - 1
        if lasting:
            end = len(self._speeds)
        else:
            low, high = max(begin + 1, end - self._size), min(len(self._speeds), end + self._stride)
            end = low + _change(self._speeds[low:high], level, expected)
        end = max(end, begin + 1)
        level = float(np.median(self._speeds[begin:end]))
        return Drop(int(self._steps[begin]), int(self._steps[end - 1]), level, expected, expected / level, lasting)


def _change(speeds: Numbers, before: float, after: float) -> int:
    """Return the number of ``speeds`` that lie at ``before``, if the others lie at ``after``: with the least sum of
    absolute differences."""
    costs = np.concatenate([[0.0], np.cumsum(np.abs(speeds - before) - np.abs(speeds - after))])
    return int(np.argmin(costs))


class Efficiency(NamedTuple):
    """Efficiency of a run, or of a part of it."""

    score: float
    """0 to 100; NaN if one of both parts is unknown."""
    rating: str | None
    """``Excellent``, ``Good``, ``Fair``, ``Poor`` or ``Critical``; None without a score."""
    gpu_utilization: float
    """Average in percent; NaN if unknown."""
    throughput_percent: float
    """Average throughput in percent of the best healthy one, 100 at most; NaN if unknown."""


def efficiency(gpu_utilization: float, throughput: float, best: float) -> Efficiency:
    """Return the efficiency.

    Args:
        gpu_utilization: average over all GPUs in percent; NaN if unknown.
        throughput: average; NaN if unknown.
        best: throughput of the best healthy stretch; NaN if there is none.
    """
    is_known = isfinite(throughput) and isfinite(best) and best > 0
    percent = 100 * max(0.0, min(throughput / best, 1.0)) if is_known else nan
    score = UTILIZATION_WEIGHT * gpu_utilization + THROUGHPUT_WEIGHT * percent
    return Efficiency(score, rating(score), gpu_utilization, percent)


def rating(score: float) -> str | None:
    """Return the rating of ``score``; None for NaN."""
    if not isfinite(score):
        return None
    return next((name for least, name in RATINGS if score >= least), LOWEST)
