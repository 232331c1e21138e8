"""Shares of the steps of healthy recordings before which a row stands out, for runs with a short history.

Made by ``benchmarks/hindsight.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from probe.core.hindsight.excursions import Array

STRENGTHS = (4.0, 4.5, 5.0, 6.0, 8.0, 12.0, 20.0)
"""Distances from the level in spreads, the greatest of all rows."""
SHARES = (0.0264, 0.0139, 0.0106, 0.0053, 0.0041, 0.003, 0.0022)
"""Mean share over families of programs, by strength."""
ROWS = 176.0
"""Rows of a recording, in the mean: with more rows, more stand out."""


def shipped_chances(strengths: Array, rows: int) -> Array:
    """Return the shares for some strengths, of a run with as many rows."""
    return chances_from(SHARES, ROWS)(strengths, rows)


def chances_from(shares: Sequence[float], mean_rows: float) -> Callable[[Array, int], Array]:
    """Return a function like :func:`shipped_chances`, of other shares by :data:`STRENGTHS`."""

    def chances(strengths: Array, rows: int) -> Array:
        places = np.searchsorted(STRENGTHS, strengths, side="right") - 1
        usual_shares = np.where(places < 0, 1.0, np.asarray(shares)[np.maximum(places, 0)])
        return np.minimum(1.0, usual_shares * max(1.0, rows / mean_rows))

    return chances
