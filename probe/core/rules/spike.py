"""Rule about values of another order of magnitude than the recent ones of the same key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import log, prod
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import Field as Argument

from probe.core.fields import Integer, Number, Section
from probe.core.records import Array, Batch, Finding
from probe.core.rules.about import About, Ops, WarmUp
from probe.core.rules.history import Field, History, HistoryReadings, Indices, measures
from probe.core.rules.reporter import Reporter

Mask = npt.NDArray[np.bool_]

EXTREMES = ("min", "max")
SQUARES = frozenset({"exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum", "acc_delta"})
"""Optimizer state made of squares: Adam's, AMSGrad's, RMSprop's, Adagrad's and Adadelta's."""
LEAPING = frozenset({"actv_grad", "grad_unreduced", "grad_reduced", "other"})
"""Gradients, and tensors of communication, mostly gradients."""
FEW = 4
"""Elements below which a norm may be near 0 by mere chance."""
MAD_TO_SIGMA = 1.4826
"""Standard deviation of a normal distribution, in median absolute deviations."""


class SpikeArgs(Section):
    """Robust deviation from the recent past."""

    window: Integer = Argument(32, ge=4, le=10_000)
    """Number of latest samples of each value that its median and spread are taken from."""
    warm_up: WarmUp = Argument(10, ge=2, le=10_000, validate_default=True)
    """Number of samples of a value before it is judged. Not more than window."""
    threshold: Number = Argument(5.0, gt=0)
    """Robust z-score that is reported: the distance from the median in units of 1.4826 times the median absolute
    deviation, both of the logarithm of the magnitude."""
    min_ratio: Number = Argument(30.0, gt=1)
    """Factor by which a magnitude must also differ from the median, upwards or downwards, so that changes in healthy
    runs are not reported. Gradients, extremes (min and max), which depend on one element, and second moments
    (exp_avg_sq, ...), which are made of squares, must differ by the square of it."""
    cool_down: Integer = Argument(10, ge=0)
    """Number of samples after a report during which the same value is not reported again."""
    ops: Ops = ("norm", "min", "max")
    """Ops that are judged, of those that are collected. Means swing a hundredfold in healthy runs, so they are left
    out."""


class AnomalySpike(About):
    """Report magnitudes far from the median of the last ``args.window`` ones of the same (signal, key, op).

    With ``x = ln|value|`` a value spikes if ``|x - median| > max(ln(args.min_ratio), args.threshold * 1.4826 * MAD)``,
    MAD being the median absolute deviation of the window (Hampel's identifier; Davies and Gather, "The identification
    of multiple outliers", 1993). Logarithms, because healthy norms swing by factors; medians, because a spike in the
    window must not hide the next one; ``min_ratio``, because a constant has no spread. A norm may be too large or too
    small. Any other op can only be too large, as extremes and means come close to 0 when they change sign; and so can
    a norm that few elements make up (a small tensor, or a sparse one such as the output of a ReLU that is mostly off).

    Nothing is judged before ``args.warm_up`` values are held. Zeros are neither judged nor held, nor are NaN and Inf,
    which ``AnomalyNan`` reports, nor integers and booleans: ids and masks have no typical size. A spike is not held,
    nor is a minimum above 0 or a maximum below: the smallest magnitude of its tensor (of ``exp_avg_sq``, say) leaps a
    hundredfold in healthy runs. Second moments are judged by their roots: a gradient five times its usual size is
    healthy, and its square is 25 times as large.

    Gradients of all ops, and ``min`` and ``max``, where one element decides, must differ by ``min_ratio`` squared.
    In healthy runs, when a model leaves its first plateau or meets an odd batch, norms of gradients leapt 110-fold,
    extremes 350-fold; norms of all else 18-fold, extremes 39-fold (``benchmarks/false_alarms.py``). An extreme is
    compared with the larger of the two medians, its own and the other's: of two sides, one may be close to 0.

    After one is reported, a key's op stays silent for ``args.cool_down`` values; that many spikes in a row are a
    new level, with which its history begins anew.
    The ``expected`` of a finding, the median, is a magnitude: it has no sign.
    """

    Args = SpikeArgs
    title = "Spike"
    judges_size = True
    finds = "finds leaps against the recent past"
    by_default = True

    def __init__(self, args: SpikeArgs, rank: int, ops: Sequence[str]) -> None:
        self._args = args
        self._ops = [op for op in args.ops if op in ops]
        self._least = log(args.min_ratio) * np.array([2 if op in EXTREMES else 1 for op in self._ops])
        self._least_of_gradients = np.full(len(self._ops), 2 * log(args.min_ratio))
        self._others = self._distances()
        self._two_sided = np.array([op == "norm" for op in self._ops], dtype=bool)
        fields = {
            "window": Field(np.nan, np.float32, (args.window,)),
            "held": Field(0, np.int64),
            "streak": Field(0, np.int64),
            "silent": Field(0, np.int64),
        }
        self.history = History(self._ops, fields)
        self._reporter = Reporter("AnomalySpike", rank, "history median")

    def _distances(self) -> Indices:
        """Distances from each op's slot to that of the op on the other side of 0; 0 if there is none."""
        distances = np.zeros(len(self._ops), dtype=np.int64)
        if set(EXTREMES) <= set(self._ops):
            low, high = (self._ops.index(op) for op in EXTREMES)
            distances[[low, high]] = high - low, low - high
        return distances

    def judge(self, batch: Batch) -> Iterator[Finding]:
        readings = self.history.read(batch)
        readings = readings.where(
            np.isfinite(readings.values) & (readings.values != 0) & measures(batch.dtypes)[readings.at]
        )
        power = 2 if batch.signal in SQUARES else 1
        sizes = np.log(np.abs(readings.values)) / power
        spikes, medians = self._spikes(batch, readings, sizes)
        reported = self._remember(readings.slots, sizes, spikes, self._is_large(readings))
        found, expected = readings.where(reported), np.exp(power * medians[reported])
        for n in np.unique(found.op).tolist():
            own = found.op == n
            yield from self._reporter.findings(batch, self._ops[n], found.at[own], found.values[own], expected[own])

    def _spikes(self, batch: Batch, readings: HistoryReadings, sizes: Array) -> tuple[Mask, Array]:
        """Mask of the values that spike, and the medians of those that might (NaN elsewhere)."""
        spikes, medians = np.zeros(len(sizes), dtype=bool), np.full(len(sizes), np.nan)
        windows = self.history.of("window")[readings.slots]
        least = (self._least_of_gradients if batch.signal in LEAPING else self._least)[readings.op]
        likely = self._candidates(readings, sizes, windows, least)
        own = medians_of(windows[likely])
        spread = medians_of(np.abs(windows[likely] - own[:, None]))
        medians[likely] = np.fmax(own, self._across(readings.slots[likely], readings.op[likely]))
        above = sizes[likely] - medians[likely]
        limit = np.maximum(least[likely], self._args.threshold * MAD_TO_SIGMA * spread)
        for n, excess, bound in zip(likely.tolist(), above.tolist(), limit.tolist(), strict=True):
            spikes[n] = excess > bound or (-excess > bound and self._may_be_small(batch, readings, n))
        return spikes, medians

    def _across(self, slots: Indices, op: Indices) -> Array:
        """Medians on the other side of 0; NaN where nothing is held there."""
        windows = self.history.of("window")[slots + self._others[op]]
        held = ~np.isnan(windows[:, 0])
        medians = np.full(len(windows), np.nan)
        medians[held] = medians_of(windows[held])
        return medians

    def _candidates(
        self, readings: HistoryReadings, sizes: Array, windows: npt.NDArray[np.float32], least: Array
    ) -> Indices:
        """Indices of values that could spike, by cheaper bounds than a median, which lies between the extremes."""
        ready = self.history.of("held")[readings.slots] >= self._args.warm_up
        above = sizes - np.fmin.reduce(windows, axis=1)
        below = np.where(self._two_sided[readings.op], np.fmax.reduce(windows, axis=1) - sizes, -np.inf)
        return np.flatnonzero(ready & (np.maximum(above, below) > least))

    def _may_be_small(self, batch: Batch, readings: HistoryReadings, n: int) -> bool:
        """Return whether a small value of this reading can be judged."""
        row = readings.at[n]
        return bool(self._two_sided[readings.op[n]]) and _elements(batch, row, readings.values[n]) >= FEW

    def _is_large(self, readings: HistoryReadings) -> Mask:
        """Mask of the values that may be of the largest magnitude in their tensor."""
        side = np.array([{"min": -1, "max": 1}.get(op, 0) for op in self._ops])[readings.op]
        mask: Mask = side * readings.values >= 0
        return mask

    def _remember(self, slots: Indices, sizes: Array, spikes: Mask, large: Mask) -> Mask:
        """Update the history; return the mask of the spikes to report."""
        window, held = self.history.of("window"), self.history.of("held")
        streak, silent = self.history.of("streak"), self.history.of("silent")
        reported: Mask = spikes & (silent[slots] == 0)
        silent[slots] = np.where(reported, self._args.cool_down, np.maximum(silent[slots] - 1, 0))
        streak[slots] = np.where(spikes, streak[slots] + 1, 0)
        settled = streak[slots] >= max(self._args.cool_down, 1)
        window[slots[settled]], held[slots[settled]], streak[slots[settled]] = np.nan, 0, 0
        kept = (~spikes | settled) & large
        places = slots[kept]
        window[places, held[places] % self._args.window] = sizes[kept]
        held[places] += 1
        return reported


def _elements(batch: Batch, row: int, norm: float) -> float:
    """Lower bound of the number of elements that make up ``norm``: as if all had the largest magnitude."""
    peak = max((abs(batch.columns[op][row]) for op in EXTREMES if op in batch.columns), default=0.0)
    return float((norm / peak) ** 2) if peak else prod(batch.shapes[row])


def medians_of(windows: npt.NDArray[np.floating[Any]]) -> Array:
    """Median of each row without its NaN padding; every row has a number.

    Several times faster than ``numpy.nanmedian``, which treats short rows one by one.
    """
    ordered = np.sort(windows, axis=1)  # NaN last
    counts = (~np.isnan(windows)).sum(axis=1)
    rows = np.arange(len(windows))
    middle: Array = (ordered[rows, (counts - 1) // 2] + ordered[rows, counts // 2]).astype(np.float64) / 2
    return middle
