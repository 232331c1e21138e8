"""Which numbers of a batch are written."""

from __future__ import annotations

from collections.abc import Sequence

from probe.core.moments import MOMENTS, OPS
from probe.core.records import Batch


def ops_of(batch: Batch, ops: Sequence[str]) -> tuple[str, ...]:
    """Those of ``ops`` that ``batch`` can answer, in their order, then the columns that its signal adds."""
    derived = [op for op in ops if op in OPS and OPS[op].moment in batch.columns]
    added = [name for name in batch.columns if name not in MOMENTS and name not in derived]
    return (*derived, *added)
