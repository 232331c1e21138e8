"""Rule about gradients that have become vanishingly small."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import log

import numpy as np
import numpy.typing as npt
from pydantic import Field as Argument

from probe.core.fields import Integer, Number, Section
from probe.core.records import Array, Batch, Finding
from probe.core.robust import medians_of
from probe.core.rules.about import About, WarmUp, has_op
from probe.core.rules.history import Field, History, HistoryReadings, Indices, measures
from probe.core.rules.reporter import Reporter

Mask = npt.NDArray[np.bool_]

SIGNALS = frozenset({"actv_grad", "grad_unreduced", "grad_reduced"})
NOTHING = -750.0
"""Number in place of the logarithm of 0: less than twice that of the smallest norm, the root of the smallest float64,
so that a median between 0 and any norm is below all norms."""
FADED = log(4.0)
"""Least distance of a norm below its median before a coefficient of the loss reaches 0, as a logarithm."""


class VanishArgs(Section):
    """Gradients that have become vanishingly small."""

    window: Integer = Argument(32, ge=4, le=10_000)
    """Number of latest samples of each gradient's norm that its median is taken from."""
    warm_up: WarmUp = Argument(10, ge=2, le=10_000, validate_default=True)
    """Number of samples of a gradient before it is judged. Not more than window."""
    min_ratio: Number = Argument(1e3, gt=1)
    """A gradient is reported when its norm is this many times below its own recent median, and has also shrunk this
    many times more than the gradient of the same kind that shrank least. A norm of exactly 0 has shrunk by any
    factor."""
    steps: Integer = Argument(5, ge=1, le=10_000)
    """Number of samples in a row in which a gradient must be that small before it is reported."""


class AnomalyVanish(About):
    """Report a gradient whose norm is ``args.min_ratio`` times smaller than the median of its last ``args.window``
    ones,
    or has become exactly 0, in ``args.steps`` samples in a row; once, until it has recovered.

    It must also have shrunk by ``args.min_ratio`` more than the gradient of the same signal that has shrunk least. So
    training that converges is not reported, and neither is a batch from which there is nothing to learn: there all
    gradients fall together. A learning rate that falls changes no gradient.

    A gradient that has become exactly 0 is not reported if it was a fourth of its median or less before, and not
    vanishingly small: then a coefficient of the loss has gone to 0.

    A gradient that was always 0 is not reported, nor one that is 0 more often than not (a branch that is seldom taken):
    its median is 0 too. A dead layer (see ``AnomalyDead``) makes the gradients of all layers before it vanish.
    """

    Args = VanishArgs
    title = "Vanished gradient"
    why = "What lies before the place is no longer trained."
    source = "https://doi.org/10.1109/ICSE43902.2021.00043"
    sees = "norms of gradients, against their past and against the others of the step"
    kind = "vanishing"
    finds = "finds gradients that have become vanishingly small"
    needs = (
        (lambda s: s.wg_distribution or s.xy_distribution, "wg_distribution or xy_distribution"),
        (lambda s: has_op(s, "norm"), "the op norm"),
    )
    by_default = True

    def __init__(self, args: VanishArgs, rank: int, ops: Sequence[str]) -> None:
        self._args = args
        self._least = log(args.min_ratio)
        fields = {
            "window": Field(np.nan, np.float32, (args.window,)),
            "held": Field(0, np.int64),
            "streak": Field(0, np.int64),
        }
        self.history = History([op for op in ("norm",) if op in ops], fields)
        self._reporter = Reporter("AnomalyVanish", rank, "history median")

    def judge(self, batch: Batch) -> Iterator[Finding]:
        if batch.signal not in SIGNALS:
            return
        readings = self.history.read(batch)
        readings = readings.where(np.isfinite(readings.values) & measures(batch.dtypes)[readings.at])
        with np.errstate(divide="ignore"):
            sizes = np.maximum(np.log(readings.values), NOTHING)
        low, medians = self._low(readings, sizes)
        streak = self._remember(readings.slots, sizes, low)
        vanishing = streak == self._args.steps
        if vanishing.any():
            vanishing &= ~self._faded(readings.slots, sizes, medians)
        vanished = readings.where(vanishing)
        yield from self._reporter.findings(batch, "norm", vanished.at, vanished.values, np.exp(medians[vanishing]))

    def _low(self, readings: HistoryReadings, sizes: Array) -> tuple[Mask, Array]:
        """Return the mask of vanishingly small gradients, and the medians before, where needed (NaN elsewhere)."""
        windows = self.history.of("window")[readings.slots]
        ready = self.history.of("held")[readings.slots] >= self._args.warm_up
        medians = np.full(len(sizes), np.nan)
        low = ready & (sizes < np.fmax.reduce(windows, axis=1, initial=NOTHING) - self._least)
        if not low.any():  # the median lies below the largest: usually no row is low
            return low, medians
        medians[ready] = medians_of(windows[ready])
        changes = sizes - medians
        least_fallen = min(np.nanmax(changes), 0.0)
        return low & (medians > NOTHING / 2) & (changes < least_fallen - self._least), medians

    def _faded(self, slots: Indices, sizes: Array, medians: Array) -> Mask:
        """Return the mask of the gradients that are 0 and were on their way to it before."""
        if self._args.steps >= self._args.window:
            return np.zeros(len(slots), dtype=np.bool_)
        places = (self.history.of("held")[slots] - self._args.steps - 1) % self._args.window
        latest = self.history.of("window")[slots, places]
        faded: Mask = (sizes == NOTHING) & (latest < medians - FADED) & (latest > medians - self._least)
        return faded

    def _remember(self, slots: Indices, sizes: Array, low: Mask) -> Indices:
        """Update the history; return for how many samples each gradient has been vanishingly small."""
        window, counts, streak = self.history.of("window"), self.history.of("held"), self.history.of("streak")
        begun = (counts[slots] > 0) | (sizes > NOTHING)  # a gradient that was always 0 has no history
        streak[slots] = np.where(low, streak[slots] + 1, 0)
        places = slots[begun]
        window[places, counts[places] % self._args.window] = sizes[begun]
        counts[places] += 1
        since: Indices = streak[slots]
        return since
