"""Score of efficiency from 0 to 100, and its rating."""

from __future__ import annotations

from math import isfinite, nan
from typing import NamedTuple

UTILIZATION_WEIGHT, THROUGHPUT_WEIGHT = 0.6, 0.4
RATINGS = ((90.0, "Excellent"), (80.0, "Good"), (70.0, "Fair"), (60.0, "Poor"))
"""Least score of each rating."""
LOWEST = "Critical"
LOW = ("Poor", LOWEST)
"""Ratings that are reported."""
FORMULA = "0.6 * gpu_utilization + 0.4 * 100 * min(average_throughput / best_throughput, 1)"


class Efficiency(NamedTuple):
    """Efficiency of a run, or of a part of it."""

    score: float
    """0 to 100; NaN if one of both parts is unknown."""
    rating: str | None
    """``Excellent``, ``Good``, ``Fair``, ``Poor`` or ``Critical``; None without a score."""
    gpu_utilization: float
    """Average in percent; NaN if unknown."""
    throughput_percent: float
    """Average throughput in percent of the best healthy one, 100 at most; NaN if unknown."""


def efficiency(gpu_utilization: float, throughput: float, best: float) -> Efficiency:
    """Return the efficiency.

    Args:
        gpu_utilization: average over all GPUs in percent; NaN if unknown.
        throughput: average; NaN if unknown.
        best: throughput of the best healthy stretch; NaN if there is none.
    """
    is_known = isfinite(throughput) and isfinite(best) and best > 0
    percent = 100 * max(0.0, min(throughput / best, 1.0)) if is_known else nan
    score = UTILIZATION_WEIGHT * gpu_utilization + THROUGHPUT_WEIGHT * percent
    return Efficiency(score, rating(score), gpu_utilization, percent)


def rating(score: float) -> str | None:
    """Return the rating of ``score``; None for NaN."""
    if not isfinite(score):
        return None
    return next((name for least, name in RATINGS if score >= least), LOWEST)
