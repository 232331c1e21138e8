"""Rule about one element of an activation that outgrows all others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import log

import numpy as np
import numpy.typing as npt
from pydantic import Field as Argument

from probe.core.fields import Integer, Number, Section
from probe.core.moments import numels
from probe.core.records import Array, Batch, Finding
from probe.core.rules.about import About, WarmUp, has_op
from probe.core.rules.history import Field, History, Indices, measures
from probe.core.rules.reporter import Reporter

Mask = npt.NDArray[np.bool_]

FEW = 64
"""Elements below which one of them may be a large part of the norm for good reason."""
SPREAD = 8.0
"""Part of the largest possible ratio, the root of the number of elements, below which the norm is that of many."""
NEEDED = ("min", "max", "norm")


class ExtremeArgs(Section):
    """Elements of activations that outgrow all others. Needs the ops min, max and norm."""

    window: Integer = Argument(32, ge=4, le=10_000)
    """Number of latest samples that one is compared with."""
    warm_up: WarmUp = Argument(16, ge=2, le=10_000, validate_default=True)
    """Number of samples of a row before it is judged. Not more than window."""
    min_ratio: Number = Argument(4.0, gt=1)
    """Factor by which the largest magnitude over the root mean square must be above the largest such ratio of the
    window."""
    cool_down: Integer = Argument(10, ge=1, le=10_000)
    """Number of samples after a report during which the same row is not reported again. As many in a row are a new
    level."""


class AnomalyExtreme(About):
    """Report an input or output of a module whose largest magnitude, divided by the root mean square of its elements,
    is ``args.min_ratio`` times the largest such ratio of its last ``args.window`` samples.

    The ratio lies between 1 and the root of the number of elements, whatever the scale, and hardly changes from one
    batch to the next, so that a single element that is wrong stands out, which the norm of its tensor may hardly show:
    a product that a faulty core has miscalculated, a bit that has flipped (https://arxiv.org/abs/2502.12340,
    https://arxiv.org/abs/2604.00726). Tensors of fewer than 64 elements are not judged, nor those in which a few
    elements made up the norm before (a ratio of more than an eighth of the largest possible), such as one-hot codes and
    outputs that are mostly zero. A peak is not held.
    """

    Args = ExtremeArgs
    title = "Peak of one element"
    why = "One wrong element of a product hardly changes a norm, and is carried on through the whole model."
    source = "https://arxiv.org/abs/2502.12340"
    sees = "min, max and norm of inputs and outputs of modules, against the last 32 samples of the same row"
    judges_size = True
    finds = "finds activations of which one element outgrows all others"
    needs = (
        (lambda s: s.xy_distribution and not s.backward_only, "xy_distribution without backward_only"),
        (lambda s: all(has_op(s, op) for op in NEEDED), "the ops min, max and norm"),
    )
    by_default = True

    def __init__(self, args: ExtremeArgs, rank: int, ops: Sequence[str]) -> None:
        self._args = args
        self._least = log(args.min_ratio)
        self._is_possible = {*NEEDED} <= {*ops}
        fields = {
            "window": Field(np.nan, np.float32, (args.window,)),
            "held": Field(0, np.int64),
            "streak": Field(0, np.int64),
            "silent": Field(0, np.int64),
        }
        self.history = History(["max"], fields)
        self._reporter = Reporter("AnomalyExtreme", rank, "largest so far for such a tensor")

    def judge(self, batch: Batch) -> Iterator[Finding]:
        if batch.signal != "actv" or not self._is_possible or not {"min", "max", "sumsq"} <= {*batch.columns}:
            return
        rows, counts = self.history.rows(batch), numels(batch.shapes)
        low, high, squares = (batch.columns[name] for name in ("min", "max", "sumsq"))
        top = np.maximum(np.abs(low), np.abs(high))
        judged = (rows >= 0) & measures(batch.dtypes) & (counts >= FEW) & np.isfinite(top) & np.isfinite(squares)
        at = np.flatnonzero(judged & (squares > 0) & (top > 0))
        ratios = np.log(top[at]) + np.log(counts[at] / squares[at]) / 2
        peaks, highest = self._peaks(rows[at], ratios, counts[at])
        extremes = at[peaks]
        if len(extremes):
            rest = np.sqrt(np.maximum(squares[extremes] - top[extremes] ** 2, 0) / (counts[extremes] - 1))
            yield from self._findings(batch, extremes, np.exp(highest[peaks]) * rest)

    def _findings(self, batch: Batch, extremes: Indices, usual: Array) -> Iterator[Finding]:
        low, high = batch.columns["min"][extremes], batch.columns["max"][extremes]
        for op, values, side in (("max", high, high >= -low), ("min", low, high < -low)):
            expected = np.copysign(usual, values)
            yield from self._reporter.findings(batch, op, extremes[side], values[side], expected[side])

    def _peaks(self, slots: Indices, ratios: Array, counts: Array) -> tuple[Mask, Array]:
        """Update the history; return which rows to report, and the largest ratio of each window."""
        window, lengths = self.history.of("window"), self.history.of("held")
        streak, silent = self.history.of("streak"), self.history.of("silent")
        highest = np.fmax.reduce(window[slots], axis=1, initial=-np.inf).astype(np.float64)
        spread = highest < np.log(np.sqrt(counts) / SPREAD)
        peaks = (lengths[slots] >= self._args.warm_up) & spread & (ratios > highest + self._least)
        reported: Mask = peaks & (silent[slots] == 0)
        silent[slots] = np.where(reported, self._args.cool_down, np.maximum(silent[slots] - 1, 0))
        streak[slots] = np.where(peaks, streak[slots] + 1, 0)
        settled = streak[slots] >= self._args.cool_down
        window[slots[settled]], lengths[slots[settled]], streak[slots[settled]] = np.nan, 0, 0
        normal = ~peaks | settled
        window[slots[normal], lengths[slots[normal]] % self._args.window] = ratios[normal]
        lengths[slots[normal]] += 1
        return reported, highest
