"""Numbers that no training should show: NaN, Inf and, if a threshold is given, anything beyond it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from probe.core.moments import COUNTS, OPS
from probe.core.records import Array, Batch, Finding
from probe.core.rules.findings import Reporter


class AnomalyNan:
    """Reports NaN and Inf in every configured op, and magnitudes above ``args.threshold`` if it is not None.

    It has no memory, so a value that stays NaN is reported at every sampled step. The counts ``nans`` and ``infs`` are
    findings where they are above 0, whatever the threshold. A NaN that only says that an op has no answer is none:
    ``min``, ``max``, ``mean``, ... of a tensor without elements, ``id`` of a tensor that is not a scalar. An additive
    attention mask is none either: an input whose elements go from -Inf to exactly 0, if min and max are collected.
    """

    def __init__(self, args: Any, rank: int, ops: Sequence[str]) -> None:
        self._threshold: float | None = args.threshold
        self._ops = ops
        self._reporter = Reporter("AnomalyNan", rank, "threshold")

    def judge(self, batch: Batch) -> Iterator[Finding]:
        masks = _masks(batch)
        for op in self._ops:
            column = _column(batch, op)
            if column is None:
                continue
            bad = self._bad(batch, op, column)
            at = np.array([row for row in bad if row not in masks and _answers(op, batch.shapes[row])], dtype=int)
            if len(at):
                values = batch.op(op)[at]
                expected = np.full(len(at), np.nan) if op in COUNTS else self._expected(values)
                yield from self._reporter.findings(batch, op, at, values, expected)

    def _bad(self, batch: Batch, op: str, column: Array) -> npt.NDArray[np.int64]:
        """Rows to look at more closely."""
        if op in COUNTS:
            return np.flatnonzero(~(column == 0))
        bad = ~np.isfinite(column)
        if self._threshold is not None:
            bad |= np.abs(batch.op(op)) > self._threshold
        return np.flatnonzero(bad)

    def _expected(self, values: Array) -> Array:
        threshold = np.nan if self._threshold is None else self._threshold
        return np.where(np.isfinite(values), threshold, np.nan)


def _column(batch: Batch, op: str) -> Array | None:
    """Numbers that are finite just where those of ``op`` are: its moment, which needs no division by shapes, unless
    that is a histogram. None if it was not collected, or is one itself."""
    known = OPS.get(op)
    name = known.moment if known is not None and known.moment in batch.columns else op
    column = batch.columns.get(name)
    if column is None or column.ndim == 1:
        return column
    return None if known is None else batch.op(op)


def _masks(batch: Batch) -> frozenset[int]:
    """Rows that are additive masks: forward inputs between -Inf and exactly 0."""
    low, high = batch.columns.get("min"), batch.columns.get("max")
    if batch.signal != "actv" or low is None or high is None:
        return frozenset()
    rows = np.flatnonzero(np.isneginf(low) & (high == 0))
    return frozenset(int(row) for row in rows if batch.keys[row].part.startswith("input"))


def _answers(op: str, shape: tuple[int, ...]) -> bool:
    """Whether ``op`` of a tensor of this shape is a number at all."""
    return shape == () if op == "id" else 0 not in shape
