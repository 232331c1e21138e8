"""Tails of the largest residual of a step in healthy training, and the limits that follow from a rate of warnings."""

from __future__ import annotations

from functools import lru_cache
from math import log
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from probe.core.records import Array
from probe.core.rules.tail_table import TAILS

Mask = npt.NDArray[np.bool_]

WARNINGS = 0.2
"""Warnings in 10,000 healthy steps, unless the user chooses another number."""
STEPS = 10_000
LEAST = 6.0
"""Least limit: at any rate, what is nearer to its past is usual."""
ROWS = 64
"""Number of rows for which the sizes of the table are."""
KINDS = {
    "grad_unreduced": "gradients",
    "grad_reduced": "gradients",
    "actv": "activations",
    "actv_grad": "gradients of activations",
    "param_origin": "parameters",
    "param_updated": "parameters",
}
"""Kinds of signals that have one tail, and one episode at a time."""


class Tail(NamedTuple):
    """Exponential tail: beyond ``size``, which begins ``share`` episodes a healthy step, their number falls by the
    factor e with each ``scale``; it grows with the number of rows, by the power ``growth``."""

    size: float
    share: float
    scale: float
    growth: float


class Limits(NamedTuple):
    """Sizes in robust standard deviations beyond which a rise or a fall is reported."""

    above: float
    below: float


@lru_cache(maxsize=256)
def limits(signal: str, rows: int, alone: bool, warnings: float) -> Limits:
    """Return the limits at which healthy training has ``warnings`` in 10,000 steps over all signals.

    Args:
        alone: whether the rows are too few to take out a common movement.
    """
    mode = "alone" if alone else "together"
    return Limits(*(limit_of(Tail(*TAILS[KINDS[signal], mode, side]), rows, warnings) for side in Limits._fields))


def chances(signal: str, residuals: Array, spreads: Array, alone: bool) -> Array:
    """Return for each row the chance of as large a residual in a healthy step; 1 where the tail is not reached.

    Args:
        residuals: with their sign; NaN for rows that are not judged.
    """
    mode = "alone" if alone else "together"
    above, below = (Tail(*TAILS[KINDS[signal], mode, side]) for side in Limits._fields)
    usual = np.ones(len(residuals))
    for tail, sizes in ((above, residuals / spreads), (below, -residuals / spreads)):
        is_beyond = sizes >= tail.size
        share = tail.share / ROWS**tail.growth
        usual[is_beyond] = np.minimum(share * np.exp((tail.size - sizes[is_beyond]) / tail.scale), 1.0)
    return usual


def discoveries(chances: Array, share: float) -> Mask:
    """Return the rows of which, on average, no more than ``share`` are healthy.

    Benjamini and Hochberg, "Controlling the false discovery rate" (1995), https://doi.org/10.1111/j.2517-6161.1995.tb02031.x
    """
    ordered = np.sort(chances)
    is_small = ordered <= share * np.arange(1, len(ordered) + 1) / max(len(ordered), 1)
    rare: Mask = chances <= (ordered[is_small].max() if is_small.any() else -1.0)
    return rare


def limit_of(tail: Tail, rows: int, warnings: float) -> float:
    """Return the limit by one tail, which has its part of the warnings: each signal and side has the same."""
    share = warnings / STEPS / (len(KINDS) * len(Limits._fields))
    more = tail.share * (max(rows, 1) / ROWS) ** tail.growth
    return max(tail.size + tail.scale * log(more / share), LEAST)
