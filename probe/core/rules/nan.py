"""Rule about NaN, Inf and, if a threshold is set, magnitudes above it."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from probe.core.fields import Section, Threshold
from probe.core.histogram import HISTOGRAM, INFINITE, NAN, QUANTILES, ZERO
from probe.core.moments import COUNTS, OPS
from probe.core.records import Array, Batch, Finding
from probe.core.rules.about import About
from probe.core.rules.reporter import Reporter

MOST = float(np.finfo(np.float64).max)
FINITE = ("kernel_norm", "entropy", "per_token_expert_entropy")
"""Columns of features that are finite if their tensors are."""


class NanArgs(Section):
    """NaN, infinity and excess."""

    threshold: Threshold | None = None
    """Magnitude above which a value is reported, in the unit of the op. NaN and infinity are reported in any case."""


class AnomalyNan(About):
    """Report NaN and Inf in every configured op, and magnitudes above ``args.threshold`` if it is not None.

    It has no memory, so a value that stays NaN is reported at every sampled step. The counts ``nans`` and ``infs`` are
    findings if they are above 0, whatever the threshold. A NaN of an op that is undefined is no finding: ``min``,
    ``max``, ``mean``, ... of a tensor without elements, ``id`` of a tensor that is not a scalar. An additive attention
    mask is none either: an input whose elements range from -Inf to exactly 0, if min and max or a histogram are
    collected.

    If only histograms and quantiles are configured, the NaN and Inf that they count are reported as ``nans`` and
    ``infs``. NaN of an interpretable feature is reported if it means that the weight or the scores are not finite.
    """

    Args = NanArgs
    title = "Excessive value"
    why = "NaN spreads to all that is computed from it, so that only its first place shows the cause."
    source = "https://github.com/facebookresearch/metaseq/tree/main/projects/OPT/chronicles"
    sees = "every collected op of every signal"
    kind = "limit"
    judges_size = True
    finds = "finds NaN, infinity and too large values"
    by_default = True

    def __init__(self, args: NanArgs, rank: int, ops: Sequence[str]) -> None:
        self._threshold: float | None = args.threshold
        self._ops = list(dict.fromkeys((*(op for op in ops if op != HISTOGRAM), *FINITE)))
        self._counting = not any(op in OPS and op not in QUANTILES for op in ops)
        self._reporter = Reporter("AnomalyNan", rank, "threshold")

    def judge_step(self, batches: Sequence[Batch]) -> Iterator[Finding]:
        """Judge all batches of a step: those alone in which something may be wrong."""
        suspect = [True] * len(batches) if self._counting else self._suspect(batches)
        for batch, wrong in zip(batches, suspect, strict=True):
            if wrong:
                yield from self.judge(batch)

    def _suspect(self, batches: Sequence[Batch]) -> list[bool]:
        """Return for each batch whether any of its numbers may be reported."""
        suspect = [False] * len(batches)
        for op in self._ops:
            columns = [
                (n, column) for n, batch in enumerate(batches) if (column := self._judged(batch, op)) is not None
            ]
            if columns and self._any_bad(op, np.concatenate([column for _, column in columns])):
                for n, column in columns:
                    suspect[n] |= self._any_bad(op, column)
        return suspect

    def _judged(self, batch: Batch, op: str) -> Array | None:
        """Return the numbers of ``op`` that are compared with the threshold, if there is one, else its moment."""
        column = _column(batch, op)
        if column is None or self._threshold is None or op in COUNTS or op in FINITE:
            return column
        return np.where(np.isfinite(column), batch.op(op), column)

    def _any_bad(self, op: str, numbers: Array) -> bool:
        if op in COUNTS:
            return bool(numbers.any())
        limit = np.inf if self._threshold is None or op in FINITE else self._threshold
        return not bool((np.abs(numbers) <= min(limit, MOST)).all())

    def judge(self, batch: Batch) -> Iterator[Finding]:
        masks = _masks(batch)
        if self._counting and HISTOGRAM in batch.columns:
            yield from self._counted(batch, batch.columns[HISTOGRAM], masks)
        for op in self._ops:
            column = _column(batch, op)
            if column is None:
                continue
            bad = self._bad(batch, op, column)
            at = np.array([row for row in bad if row not in masks and _is_defined(op, batch.shapes[row])], dtype=int)
            if len(at):
                values = batch.op(op)[at]
                limit = np.nan if op in COUNTS or self._threshold is None else self._threshold
                expected = np.where(np.isfinite(values), limit, np.nan)
                yield from self._reporter.findings(batch, op, at, values, expected)

    def _bad(self, batch: Batch, op: str, column: Array) -> npt.NDArray[np.int64]:
        """Return the rows to examine further."""
        if op in COUNTS:
            return np.flatnonzero(~(column == 0) & batch.has(op))
        bad = ~np.isfinite(column) & batch.has(op)
        if self._threshold is not None and op not in FINITE:
            bad |= np.abs(batch.op(op)) > self._threshold
        return np.flatnonzero(bad)

    def _counted(self, batch: Batch, histograms: Array, masks: Container[int]) -> Iterator[Finding]:
        """Yield the findings from the bins of elements that are not finite."""
        infinite = histograms[:, [ZERO - INFINITE, ZERO + INFINITE]].sum(axis=1)
        for op, bin_counts in (("nans", histograms[:, NAN]), ("infs", infinite)):
            at = np.array([row for row in np.flatnonzero(bin_counts) if row not in masks], dtype=int)
            yield from self._reporter.findings(batch, op, at, bin_counts[at], np.full(len(at), np.nan))


def _column(batch: Batch, op: str) -> Array | None:
    """Return the column that is finite exactly where ``op`` is: its moment, which needs no division by shapes, unless
    that is a histogram. None if it was not collected, or is one itself."""
    definition = OPS.get(op)
    name = definition.moment if definition is not None and definition.moment in batch.columns else op
    column = batch.columns.get(name)
    if column is None or column.ndim == 1:
        return column
    return None if definition is None else batch.op(op)


def _masks(batch: Batch) -> frozenset[int]:
    """Return the rows of additive masks: forward inputs between -Inf and exactly 0."""
    low, high, counts = (batch.columns.get(name) for name in ("min", "max", HISTOGRAM))
    if batch.signal != "actv":
        return frozenset()
    if low is not None and high is not None:
        rows = np.flatnonzero(np.isneginf(low) & (high == 0))
    elif counts is not None:
        rows = np.flatnonzero(counts[:, ZERO - INFINITE] * counts[:, ZERO] * (counts[:, ZERO + 1 :].sum(axis=1) == 0))
    else:
        return frozenset()
    return frozenset(int(row) for row in rows if batch.keys[row].part.startswith("input"))


def _is_defined(op: str, shape: tuple[int, ...]) -> bool:
    """Return whether ``op`` is defined for a tensor of this shape."""
    return shape == () if op == "id" else 0 not in shape
