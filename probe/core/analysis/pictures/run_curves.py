"""Curves of the numbers of the run, with as many points as the page has room for."""

from __future__ import annotations

import math
from collections.abc import Mapping

from probe.core.naming import (
    GRAD_NORM,
    LEARNING_RATE,
    LOSS,
    LOSS_SCALE,
    RUN,
    STEP_SECONDS,
    THROUGHPUT,
    TOKENS_PER_SECOND,
    VAL_LOSS,
)
from probe.core.storage.duckdb_reader import Rows

POINTS = 1000
"""Most points of a curve; beyond that a point stands for several steps."""
MOST_CURVES = 24
"""Most numbers that have a curve."""
FIRST = (
    *(LOSS, VAL_LOSS, GRAD_NORM, LEARNING_RATE),
    *(LOSS_SCALE, THROUGHPUT, TOKENS_PER_SECOND, STEP_SECONDS),
)
"""Numbers whose curves come first, in this order."""


def run_curves(rows: Rows) -> dict[str, object] | None:
    """Return the curves of the run's numbers; None if the run has no such numbers.

    Returns:
        ``names``; ``spans``, the first and last step of each point; for each name and point the lowest and highest
        value over all ranks (None without a value), and the counts of NaN and Inf; ``left_out``, the number of names
        without a curve.
    """
    if RUN not in rows.signals:
        return None
    view = rows.view(RUN)
    ends = rows.connection.execute(f"SELECT min(step), max(step) FROM {view}").fetchone()  # noqa: S608 - our own view
    first, last = ends if ends and ends[0] is not None else (0, 0)
    width = math.ceil((last - first + 1) / POINTS)
    names = [name for (name,) in rows.connection.execute(f"SELECT DISTINCT name FROM {view}").fetchall()]  # noqa: S608
    names.sort(key=lambda name: (FIRST.index(name) if name in FIRST else len(FIRST), name))
    spans = rows.connection.execute(
        f"SELECT min(step), max(step) FROM {view} WHERE step IS NOT NULL GROUP BY (step - ?) // ? ORDER BY 1",  # noqa: S608
        [first, width],
    ).fetchall()
    places = {(span[0] - first) // width: n for n, span in enumerate(spans)}
    kept = names[:MOST_CURVES]
    curves = [_curve(rows, view, name, first, width, places) for name in kept]
    return {
        "names": kept,
        "spans": spans,
        **{part: [curve[part] for curve in curves] for part in ("minimum", "maximum", "nan", "inf")},
        "left_out": len(names) - len(kept),
    }


def _curve(
    rows: Rows, view: str, name: str, first: int, width: int, places: Mapping[int, int]
) -> dict[str, list[float | None]]:
    query = (
        "SELECT (step - ?) // ?, min(value) FILTER (isfinite(value)), max(value) FILTER (isfinite(value)), "  # noqa: S608
        "count(*) FILTER (isnan(value)), "
        f"count(*) FILTER (isinf(value)) FROM {view} WHERE name = ? AND step IS NOT NULL GROUP BY 1"
    )
    curve: dict[str, list[float | None]] = {
        "minimum": [None] * len(places),
        "maximum": [None] * len(places),
        "nan": [0] * len(places),
        "inf": [0] * len(places),
    }
    for point, *numbers in rows.connection.execute(query, [first, width, name]).fetchall():
        for part, number in zip(curve.values(), numbers, strict=True):
            part[places[point]] = number
    return curve
