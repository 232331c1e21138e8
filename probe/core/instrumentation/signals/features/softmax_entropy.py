"""How spread out weights are that a softmax gives: their entropy in nats, and the largest of them."""

from __future__ import annotations

from probe.core.backend.protocols import Arrays, Numbers
from probe.core.records import Array

HIDDEN = -1e30
"""Scores below it are hidden: by -inf, or by the lowest number of float32."""
LEAST = -1e4
"""The logarithm of a weight that is none."""


def means(rows: Array) -> tuple[float, float] | None:
    """Of the entropy and of the largest weight, from the sums of any number of blocks; None where all is hidden."""
    entropy, largest, number = (float(total) for total in rows.reshape(-1, 3).sum(0))
    return (entropy / number, largest / number) if number != 0 else None


def sums(ops: Arrays, scores: Numbers) -> list[Numbers]:
    """Over the rows of ``scores`` that are not hidden whole: of the entropy, of the largest weight, and their number.

    ``H = log z - sum p t`` with ``t`` the scores less the largest, ``z = sum exp t`` and ``p = exp(t) / z``.
    """
    largest = ops.largest(scores)
    hidden = largest < HIDDEN
    scores = scores - ops.where(hidden, 0.0, largest)
    scores = ops.where(scores < LEAST, LEAST, scores)
    weights = ops.exp(scores)
    total = weights.sum(-1)
    hidden = hidden.reshape(total.shape)
    total = ops.where(hidden, 1.0, total)
    scores = scores * weights  # a new name would hold one block more
    entropy = ops.where(hidden, 0.0, ops.log(total) - scores.sum(-1) / total)
    most = ops.where(hidden, 0.0, 1 / total)
    number = ops.where(hidden, 0.0, most * 0 + 1)
    return [each.reshape(-1).sum(-1) for each in (entropy, most, number)]
