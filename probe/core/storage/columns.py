"""Which numbers of a batch are written."""

from __future__ import annotations

from collections.abc import Container, Sequence

from probe.core.histogram import HISTOGRAM
from probe.core.moments import MOMENTS, OPS
from probe.core.records import Array, Batch


def ops_of(batch: Batch, ops: Sequence[str]) -> tuple[str, ...]:
    """Those of ``ops`` that ``batch`` can answer, in their order, then the columns that its signal adds."""
    derived = [op for op in ops if op in OPS and OPS[op].moment in batch.columns]
    added = [name for name in batch.columns if name not in MOMENTS and name not in (HISTOGRAM, *derived)]
    return (*derived, *added)


def histograms_of(batch: Batch, ops: Container[str]) -> Array | None:
    """``len(batch) x BINS`` counts, if ``ops`` or ``batch`` itself ask for them and it has them."""
    return batch.columns.get(HISTOGRAM) if batch.distribution or HISTOGRAM in ops else None
