"""Learning rate beside loss: stretches of steps, each with its learning rate and the slope of its loss."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from probe.core.analysis.performance.throughput import Numbers, Steps

STRETCHES = 10
"""Parts of a run, besides those that begin where the learning rate leaps."""
MOST_STRETCHES = 30
LEAP = 1.2
"""Ratio of the learning rates of two steps that begins a new stretch."""
FEWEST_STEPS = 10
"""Least steps of a stretch."""
PER_STEPS = 1000
"""Steps over which the slope is shown."""
BINS = 20
"""Parts of a stretch whose medians decide its slope, so that single spikes do not."""


class LossStretch(NamedTuple):
    """Stretch of steps."""

    first_step: int
    last_step: int
    learning_rate_first: float
    learning_rate_last: float
    """NaN if it is unknown."""
    loss: float
    """Median; NaN if no value is finite."""
    slope: float
    """Change of the loss in a thousand steps: the median slope between pairs of medians (Theil and Sen). NaN if it is
    unknown."""
    not_finite: int
    """Steps whose loss is NaN or infinite on a rank."""


def loss_stretches(steps: Steps, rates: Numbers, losses: Numbers, not_finite: Numbers) -> list[LossStretch]:
    """Return the stretches of a run; none if it has no loss.

    Args:
        rates: learning rate of each step, NaN where there is none.
        losses: likewise.
        not_finite: number of losses in each step that are not finite.
    """
    if not len(steps) or not (np.isfinite(losses).any() or not_finite.any()):
        return []
    return [
        _stretch(steps[low:high], rates[low:high], losses[low:high], not_finite[low:high])
        for low, high in pairwise(_bounds(rates))
    ]


def _bounds(rates: Numbers) -> list[int]:
    """Return where stretches begin, and the end."""
    number = len(rates)
    before, after = rates[:-1], rates[1:]
    with np.errstate(invalid="ignore", divide="ignore"):
        leaps = (np.maximum(before, after) > LEAP * np.minimum(before, after)) & (np.minimum(before, after) >= 0)
    bounds = [0]
    for at in (np.flatnonzero(leaps) + 1).tolist():
        if at - bounds[-1] >= FEWEST_STEPS and number - at >= FEWEST_STEPS:
            bounds.append(at)
    if len(bounds) > MOST_STRETCHES - STRETCHES:  # a rate that leaps all the time
        bounds = [0]
    longest = max(FEWEST_STEPS, -(-number // STRETCHES))
    parts = [
        low + round(n * (high - low) / pieces)
        for low, high in pairwise([*bounds, number])
        for pieces in [max(1, round((high - low) / longest))]
        for n in range(pieces)
    ]
    return [*parts, number]


def _stretch(steps: Steps, rates: Numbers, losses: Numbers, not_finite: Numbers) -> LossStretch:
    finite_rates, finite = rates[np.isfinite(rates)], np.isfinite(losses)
    return LossStretch(
        int(steps[0]),
        int(steps[-1]),
        float(finite_rates[0]) if len(finite_rates) else float("nan"),
        float(finite_rates[-1]) if len(finite_rates) else float("nan"),
        float(np.median(losses[finite])) if finite.any() else float("nan"),
        PER_STEPS * robust_slope(steps[finite].astype(np.float64), losses[finite]),
        int((not_finite > 0).sum()),
    )


def robust_slope(places: Numbers, values: Numbers) -> float:
    """Return the median slope between the medians of all pairs of parts; NaN for fewer than two places.

    Source: P. K. Sen, Estimates of the regression coefficient based on Kendall's tau, JASA 63 (1968).
    """
    parts = [part for part in np.array_split(np.arange(len(places)), BINS) if len(part)]
    x = np.array([np.median(places[part]) for part in parts])
    y = np.array([np.median(values[part]) for part in parts])
    low, high = np.triu_indices(len(x), 1)
    apart = x[high] > x[low]
    if not apart.any():
        return float("nan")
    return float(np.median((y[high] - y[low])[apart] / (x[high] - x[low])[apart]))
