"""Rule about values that differ from their own running mean by more than a fraction of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from probe.core.fields import Flag, Section, Threshold
from probe.core.records import Array, Batch, Finding
from probe.core.rules.about import About, has_op
from probe.core.rules.history import Field, History
from probe.core.rules.reporter import Reporter

DECAY = 0.99
OPS = ("norm", "mean")


class TurbulenceArgs(Section):
    """Deviation from the history mean."""

    threshold: Threshold
    """Relative deviation from the history mean that is reported, as a fraction: 0.5 means more than half above it. The
    ops norm and mean are judged."""
    both_sides: Flag = False
    """Report values below (1 - threshold) times the history mean too."""


class AnomalyTurbulence(About):
    """Report ``|value| > mean * (1 + args.threshold)`` for the ops norm and mean.

    ``mean`` is the exponential mean (decay 0.99) of the magnitudes before this value, without bias correction. It
    begins with the first magnitude that is not 0: a key that starts at 0 (a bias, an unused branch) has no value to be
    compared with, and its first step away from 0 is not reported. NaN and Inf are reported, and not remembered.
    ``args.both_sides`` also reports ``|value| < mean * (1 - args.threshold)``, which needs a threshold
    below 1.
    """

    Args = TurbulenceArgs
    title = "Drift"
    why = "A slow drift has no single step that leaps; this rule is as earlier monitors have it."
    source = "https://pypi.org/project/mindstudio-probe/"
    sees = "norm and mean of every signal, against their running mean"
    kind = "drift"
    judges_size = True
    finds = "compares with the history mean"
    needs = ((lambda s: has_op(s, "norm", "mean"), "one of the ops norm and mean"),)

    def __init__(self, args: TurbulenceArgs, rank: int, ops: Sequence[str]) -> None:
        self._threshold: float = args.threshold
        self._both_sides: bool = args.both_sides
        self._ops = [op for op in OPS if op in ops]
        self.history = History(self._ops, {"mean": Field(np.nan, np.float64)})
        self._reporter = Reporter("AnomalyTurbulence", rank, "history mean")

    def judge(self, batch: Batch) -> Iterator[Finding]:
        readings = self.history.read(batch, with_nan=True)
        sizes = np.abs(readings.values)
        means = self.history.of("mean")
        before: Array = means[readings.slots]
        strays = self._strays(sizes, before)
        learned = np.isfinite(sizes) & ~(np.isnan(before) & (sizes == 0))
        after = np.where(np.isnan(before), sizes, DECAY * before + (1 - DECAY) * sizes)
        means[readings.slots[learned]] = after[learned]
        stray_readings, expected = readings.where(strays), before[strays]
        for n in np.unique(stray_readings.op).tolist():
            of_op = stray_readings.op == n
            yield from self._reporter.findings(
                batch, self._ops[n], stray_readings.at[of_op], stray_readings.values[of_op], expected[of_op]
            )

    def _strays(self, sizes: Array, means: Array) -> npt.NDArray[np.bool_]:
        """Return the mask of the values far from their means; false for a mean that has not begun (NaN)."""
        strays: npt.NDArray[np.bool_] = (sizes > means * (1 + self._threshold)) | (np.isnan(sizes) & ~np.isnan(means))
        return strays | (sizes < means * (1 - self._threshold)) if self._both_sides else strays
