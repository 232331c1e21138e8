"""Rule about values of another order of magnitude than the recent ones of the same key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import log, prod
from typing import Annotated

import annotated_types as ranges
import numpy as np
import numpy.typing as npt
from pydantic import Field as Argument

from probe.core.fields import Flag, Integer, Number, Section
from probe.core.records import Array, Batch, Finding
from probe.core.robust import MAD_TO_SIGMA, medians_of
from probe.core.rules.about import About, Ops, WarmUp
from probe.core.rules.history import Field, History, HistoryReadings, Indices, measures
from probe.core.rules.joint import JointJudge
from probe.core.rules.reporter import Reporter
from probe.core.rules.tails import WARNINGS

Mask = npt.NDArray[np.bool_]

EXTREMES = ("min", "max")
SQUARES = frozenset({"exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum", "acc_delta"})
"""Optimizer state made of squares: Adam's, AMSGrad's, RMSprop's, Adagrad's and Adadelta's."""
LEAPING = frozenset({"actv_grad", "grad_unreduced", "grad_reduced", "other", "exp_avg", "momentum_buffer", "grad_avg"})
"""Gradients, their running means, and tensors of communication, mostly gradients."""
FEW = 4
"""Elements below which a norm may be near 0 by mere chance."""


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
    runs are not reported. Gradients and their running means (exp_avg, ...), extremes (min and max), which depend on one
    element, and second moments (exp_avg_sq, ...), which are made of squares, must differ by the square of it."""
    cool_down: Integer = Argument(10, ge=0)
    """Number of samples after a report during which the same value is not reported again."""
    ops: Ops = ("norm", "min", "max")
    """Ops that are judged, of those that are collected. Means swing a hundredfold in healthy runs, so they are left
    out."""
    joint: Flag = True
    """Also judge the norms of gradients, activations and parameters together: without the movement that all rows of a
    step have in common, far smaller leaps are found. Its window is `window`, but 32 samples at least; it has limits of
    its own, from the rate of warnings, and neither `threshold` nor `min_ratio` changes them."""
    warnings_per_10000_steps: Annotated[Number, ranges.Gt(0)] | None = None
    """Rate of warnings for `joint`. Missing: that of `alert`."""


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

    Gradients and their running means, of all ops, and ``min`` and ``max``, where one element decides, must differ by
    ``min_ratio`` squared.
    In healthy runs, when a model leaves its first plateau or meets an odd batch, norms of gradients leapt 110-fold,
    extremes 350-fold; norms of all else 18-fold, extremes 39-fold (``benchmarks/false_alarms.py``). An extreme is
    compared with the larger of the two medians, its own and the other's: of two sides, one may be close to 0.

    After one is reported, a key's op stays silent for ``args.cool_down`` values; that many spikes in a row are a
    new level, with which its history begins anew.
    The ``expected`` of a finding, the median, is a magnitude: it has no sign.
    """

    Args = SpikeArgs
    title = "Spike"
    why = "One odd batch, wrong product or flipped bit leaps in one place before it is everywhere."
    source = "https://doi.org/10.1080/01621459.1993.10476339"
    sees = "norm, min and max of every signal, against the last 32 samples of the same row"
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
            "lower": Field(np.inf, np.float32),
            "upper": Field(-np.inf, np.float32),
            "held": Field(0, np.int64),
            "streak": Field(0, np.int64),
            "silent": Field(0, np.int64),
        }
        self.history = History(self._ops, fields)
        self._reporter = Reporter("AnomalySpike", rank, "history median")
        self._silent = False
        """True if any value is silent, or the last one of a series of spikes."""
        together = args.joint and "norm" in self._ops
        self._joint = JointJudge(args.window, args.warnings_per_10000_steps or WARNINGS) if together else None

    def _distances(self) -> Indices:
        """Return the distances from each op's slot to that of the op on the other side of 0; 0 if there is none."""
        distances = np.zeros(len(self._ops), dtype=np.int64)
        if set(EXTREMES) <= set(self._ops):
            low, high = (self._ops.index(op) for op in EXTREMES)
            distances[[low, high]] = high - low, low - high
        return distances

    def judge(self, batch: Batch) -> Iterator[Finding]:
        return self.judge_step([batch])

    def judge_step(self, batches: Sequence[Batch]) -> Iterator[Finding]:
        """Judge all batches of a step, each of another signal, in one pass."""
        if not batches:
            return
        batch_readings = [self._readings(batch) for batch in batches]
        readings = HistoryReadings(*map(np.concatenate, zip(*batch_readings, strict=True)))
        lengths = [len(part.values) for part in batch_readings]
        batch_of = np.repeat(np.arange(len(batches)), lengths)
        power = np.repeat([2 if batch.signal in SQUARES else 1 for batch in batches], lengths)
        leaping = np.repeat([batch.signal in LEAPING for batch in batches], lengths)
        sizes = np.log(np.abs(readings.values)) / power
        least = np.where(leaping, self._least_of_gradients[readings.op], self._least[readings.op])
        spikes, medians = self._spikes(batches, batch_of, readings, sizes, least)
        reported = np.flatnonzero(self._remember(readings.slots, sizes, spikes, self._is_large(readings)))
        reported_rows, of = readings.where(reported), batch_of[reported]
        if len(reported):
            yield from self._report(batches, of, reported_rows, np.exp(power[reported] * medians[reported]))
        if self._joint is not None:
            norms = reported_rows.op == self._ops.index("norm")
            for n, batch in enumerate(batches):
                yield from self._judge_together(
                    self._joint, batch, reported_rows.at[(of == n) & norms] if len(of) else of
                )

    def _judge_together(self, joint: JointJudge, batch: Batch, reported: Indices) -> Iterator[Finding]:
        """Yield findings about norms that leap against those of the other rows, but for those that are reported."""
        leap = joint.judge(batch)
        if leap is not None:
            leap = leap.where(~np.isin(leap.at, reported))
            yield from self._reporter.findings(batch, "norm", leap.at, leap.values, leap.expected)

    def _readings(self, batch: Batch) -> HistoryReadings:
        """Return the values of ``batch`` that can be judged and held."""
        readings = self.history.read(batch)
        measured: Mask = np.isfinite(readings.values) & (readings.values != 0) & measures(batch.dtypes)[readings.at]
        return readings if measured.all() else readings.where(measured)

    def _report(
        self, batches: Sequence[Batch], batch_of: Indices, reported_rows: HistoryReadings, expected: Array
    ) -> Iterator[Finding]:
        """Yield the findings of each batch and op, in their order."""
        pairs = np.unique(np.stack([batch_of, reported_rows.op], axis=1), axis=0)
        for number, op in pairs.tolist():
            rows = (batch_of == number) & (reported_rows.op == op)
            yield from self._reporter.findings(
                batches[number], self._ops[op], reported_rows.at[rows], reported_rows.values[rows], expected[rows]
            )

    def _spikes(
        self,
        batches: Sequence[Batch],
        batch_of: Indices,
        readings: HistoryReadings,
        sizes: Array,
        least: Array,
    ) -> tuple[Mask, Array]:
        """Return the mask of the values that spike, and the medians of those that might (NaN elsewhere)."""
        spikes, medians = np.zeros(len(sizes), dtype=bool), np.full(len(sizes), np.nan)
        likely = self._candidates(readings, sizes, least)
        if not len(likely):
            return spikes, medians
        windows = self.history.of("window")[readings.slots[likely]]
        window_medians = medians_of(windows)
        spread = medians_of(np.abs(windows - window_medians[:, None]))
        medians[likely] = np.fmax(window_medians, self._across(readings.slots[likely], readings.op[likely]))
        above = sizes[likely] - medians[likely]
        limit = np.maximum(least[likely], self._args.threshold * MAD_TO_SIGMA * spread)
        for n, excess, bound in zip(likely.tolist(), above.tolist(), limit.tolist(), strict=True):
            spikes[n] = excess > bound or (
                -excess > bound and self._may_be_small(batches[int(batch_of[n])], readings, n)
            )
        return spikes, medians

    def _across(self, slots: Indices, op: Indices) -> Array:
        """Return the medians on the other side of 0; NaN where nothing is held there."""
        windows = self.history.of("window")[slots + self._others[op]]
        present = ~np.isnan(windows[:, 0])
        medians = np.full(len(windows), np.nan)
        medians[present] = medians_of(windows[present])
        return medians

    def _candidates(self, readings: HistoryReadings, sizes: Array, least: Array) -> Indices:
        """Return the indices of values that could spike, by cheaper bounds than a median, which lies between them."""
        ready = self.history.of("held")[readings.slots] >= self._args.warm_up
        above = sizes - self.history.of("lower")[readings.slots]
        below = np.where(self._two_sided[readings.op], self.history.of("upper")[readings.slots] - sizes, -np.inf)
        return np.flatnonzero(ready & (np.maximum(above, below) > least))

    def _may_be_small(self, batch: Batch, readings: HistoryReadings, n: int) -> bool:
        """Return whether a small value of this reading can be judged."""
        row = readings.at[n]
        return bool(self._two_sided[readings.op[n]]) and _elements(batch, row, readings.values[n]) >= FEW

    def _is_large(self, readings: HistoryReadings) -> Mask:
        """Return the mask of the values that may be of the largest magnitude in their tensor."""
        side = np.array([{"min": -1, "max": 1}.get(op, 0) for op in self._ops])[readings.op]
        mask: Mask = side * readings.values >= 0
        return mask

    def _remember(self, slots: Indices, sizes: Array, spikes: Mask, large: Mask) -> Mask:
        """Update the history; return the mask of the spikes to report."""
        if not self._silent and not spikes.any():  # mostly, and quicker
            self._hold(slots[large], sizes[large])
            return spikes
        window, counts = self.history.of("window"), self.history.of("held")
        streak, silent = self.history.of("streak"), self.history.of("silent")
        reported: Mask = spikes & (silent[slots] == 0)
        silent[slots] = np.where(reported, self._args.cool_down, np.maximum(silent[slots] - 1, 0))
        streak[slots] = np.where(spikes, streak[slots] + 1, 0)
        settled = streak[slots] >= max(self._args.cool_down, 1)
        window[slots[settled]], counts[slots[settled]], streak[slots[settled]] = np.nan, 0, 0
        normal = (~spikes | settled) & large
        self._hold(slots[normal], sizes[normal])
        self._silent = bool(silent.any() or streak.any())
        return reported

    def _hold(self, slots: Indices, sizes: Array) -> None:
        """Put values into their windows, and widen the bounds of these; set them anew where a window begins again."""
        window, counts = self.history.of("window"), self.history.of("held")
        lower, upper = self.history.of("lower"), self.history.of("upper")
        places = counts[slots] % self._args.window
        window[slots, places] = sizes
        counts[slots] += 1
        lower[slots] = np.minimum(lower[slots], sizes)
        upper[slots] = np.maximum(upper[slots], sizes)
        again = slots[places == 0]
        if len(again):
            held_sizes = window[again]
            lower[again], upper[again] = np.fmin.reduce(held_sizes, axis=1), np.fmax.reduce(held_sizes, axis=1)


def _elements(batch: Batch, row: int, norm: float) -> float:
    """Lower bound of the number of elements that make up ``norm``: as if all had the largest magnitude."""
    peaks = [abs(batch.columns[op][row]) for op in EXTREMES if op in batch.columns]
    peak = max((peak for peak in peaks if peak == peak), default=0.0)  # noqa: PLR0124 - a row may lack one of the two
    return float((norm / peak) ** 2) if peak else prod(batch.shapes[row])
