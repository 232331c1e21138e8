"""Scores of a series of losses or of norms of gradients: what somebody who keeps an eye on a curve would use."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable, Sequence

WINDOW, LIMIT = 50, 4.0
"""Numbers before one that it is compared with, and the score that is an alarm."""


def z_scores(series: Iterable[float], window: int = WINDOW) -> list[float]:
    """Return for each number its distance from the mean of the ``window`` before it, in their standard deviations.

    It is 0 until so many are known, and infinite for a number that is not finite, which is not compared with later.
    """
    past: deque[float] = deque(maxlen=window)
    scores = []
    for number in series:
        if not math.isfinite(number):
            scores.append(math.inf)
            continue
        if len(past) < window:
            scores.append(0.0)
        else:
            spread = statistics.pstdev(past)
            scores.append((number - statistics.fmean(past)) / max(spread, 1e-12 * max(1.0, abs(number))))
        past.append(number)
    return scores


def alarms(scores: Sequence[float], limit: float = LIMIT) -> list[int]:
    """Return the steps whose score is beyond the limit on either side."""
    return [step for step, score in enumerate(scores) if abs(score) > limit]
