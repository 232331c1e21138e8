"""What the writers of tables have in common: how a batch's rows are described."""

from __future__ import annotations

import math

from probe.core.records import Batch


def coverages(batch: Batch) -> list[str]:
    """Of each row what it covers of a tensor that ranks share, ``""`` for a whole one; empty if all are whole."""
    return [
        coverage.text(math.prod(shape)) if coverage else ""
        for coverage, shape in zip(batch.coverage, batch.shapes, strict=False)
    ]
