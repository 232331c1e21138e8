"""Rule about attention that has collapsed: its entropy is next to nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from pydantic import Field as Argument

from probe.core.fields import Integer, Number, Section
from probe.core.records import Array, Batch, Finding
from probe.core.robust import medians_of
from probe.core.rules.about import About, WarmUp
from probe.core.rules.history import Field, History, Indices
from probe.core.rules.reporter import Reporter

OP = "entropy"


class EntropyArgs(Section):
    """Attention whose entropy has collapsed. Needs l2_targets.attention_hook."""

    window: Integer = Argument(32, ge=4, le=10_000)
    """Number of latest samples of each entropy that its median is taken from."""
    warm_up: WarmUp = Argument(10, ge=2, le=10_000, validate_default=True)
    """Number of samples of an entropy before it is judged. Not more than window."""
    min_ratio: Number = Argument(10.0, gt=1)
    """Factor below its median from which on an entropy has collapsed."""
    steps: Integer = Argument(10, ge=1, le=10_000)
    """Number of samples in a row in which an entropy must be that low before it is reported."""


class AnomalyEntropy(About):
    """Report the entropy of attention that is ``args.min_ratio`` times below the median of its last ``args.window``
    ones in ``args.steps`` samples in a row; once, until it has recovered.

    An entropy is at most the logarithm of the number of keys, and so is the median: what is a tenth of it is less than
    a tenth of that logarithm, too. A row whose shape changes, as that of a longer text, has its history begun anew.
    Low entropies are not held. Attention collapses towards one key when the scores grow without bound; the loss often
    diverges soon after (Zhai et al., "Stabilizing Transformer Training by Preventing Attention Entropy Collapse",
    https://arxiv.org/abs/2303.06296).
    """

    Args = EntropyArgs
    title = "Collapsed attention"
    why = "Scores that grow without bound put all weight on one key; the loss often diverges soon after."
    source = "https://arxiv.org/abs/2303.06296"
    sees = "entropy of the attention of each module that l2_targets.attention_hook names"
    kind = "collapse"
    finds = "finds attention whose entropy has collapsed"
    needs = ((lambda s: s.recording_l2_features and bool(s.l2_targets.attention_hook), "l2_targets.attention_hook"),)
    by_default = True

    def __init__(self, args: EntropyArgs, rank: int, ops: Sequence[str]) -> None:  # noqa: ARG002
        self._args = args
        fields = {
            "window": Field(np.nan, np.float32, (args.window,)),
            "held": Field(0, np.int64),
            "streak": Field(0, np.int64),
            "shape": Field(-1, np.int64),
        }
        self.history = History([OP], fields)
        self._reporter = Reporter("AnomalyEntropy", rank, "history median")

    def judge(self, batch: Batch) -> Iterator[Finding]:
        if batch.signal != "attention_hook" or OP not in batch.columns:
            return
        rows, entropy = self.history.rows(batch), batch.columns[OP]
        at = np.flatnonzero((rows >= 0) & np.isfinite(entropy))
        slots, values = rows[at], entropy[at]
        self._begin_anew(slots, np.array([hash(batch.shapes[row]) for row in at.tolist()], dtype=np.int64))
        medians = self._medians(slots)
        low = values * self._args.min_ratio < medians
        streak = self.history.of("streak")
        streak[slots] = np.where(low, streak[slots] + 1, 0)
        self._hold(slots[~low], values[~low])
        collapsed = low & (streak[slots] == self._args.steps)
        yield from self._reporter.findings(batch, OP, at[collapsed], values[collapsed], medians[collapsed])

    def _begin_anew(self, slots: Indices, shapes: Indices) -> None:
        """Forget the history of rows whose shape has changed."""
        window, counts = self.history.of("window"), self.history.of("held")
        streak, shape = self.history.of("streak"), self.history.of("shape")
        others = slots[shape[slots] != shapes]
        window[others], counts[others], streak[others] = np.nan, 0, 0
        shape[slots] = shapes

    def _medians(self, slots: Indices) -> Array:
        """Return the medians of the rows that have been seen often enough, NaN of others."""
        medians = np.full(len(slots), np.nan)
        ready = self.history.of("held")[slots] >= self._args.warm_up
        if ready.any():
            medians[ready] = medians_of(self.history.of("window")[slots[ready]])
        return medians

    def _hold(self, slots: Indices, values: Array) -> None:
        window, counts = self.history.of("window"), self.history.of("held")
        window[slots, counts[slots] % self._args.window] = values
        counts[slots] += 1
