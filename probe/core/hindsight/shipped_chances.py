"""Shares of the steps of healthy recordings before which a row stands out, for runs with a short history.

Made by ``benchmarks/hindsight.py --table``.
"""

from __future__ import annotations

import numpy as np

from probe.core.hindsight.excursions import Array

STRENGTHS = (4.0, 4.5, 5.0, 6.0, 8.0, 12.0, 20.0)
"""Distances from the level in spreads, the greatest of all rows."""
SHARES = (0.15, 0.08, 0.03, 0.005, 0.003, 0.001, 0.0)
"""Mean share over families of programs, by strength."""
ROWS = 300
"""Rows of a recording, in the mean: with more rows, more stand out."""


def shipped_chances(strengths: Array, rows: int) -> Array:
    """Return the shares for some strengths, of a run with as many rows."""
    places = np.searchsorted(STRENGTHS, strengths, side="right") - 1
    shares = np.where(places < 0, 1.0, np.asarray(SHARES)[np.maximum(places, 0)])
    chances: Array = np.minimum(1.0, shares * max(1.0, rows / ROWS))
    return chances
