"""Curves of the numbers of the run, with as many points as the page has room for."""

from __future__ import annotations

import math
from typing import NamedTuple

from probe.core.analysis.report.page import PageSection
from probe.core.messages import plural
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


class RunCurves(NamedTuple):
    """Curves of a run."""

    curves: list[dict[str, object]]
    """For each number its name, and for each point the first step, the mean, the lowest and the highest value over all
    ranks and the steps of the point (None without a finite value), and the steps with a value that is not finite."""
    left_out: int
    """Numbers that have no curve, because there are too many."""


def run_curves(rows: Rows) -> RunCurves:
    """Return the curves of the run's numbers; none if the run has no such numbers."""
    if RUN not in rows.signals:
        return RunCurves([], 0)
    view = rows.view(RUN)
    ends = rows.connection.execute(f"SELECT min(step), max(step) FROM {view}").fetchone()  # noqa: S608 - our own view
    first, last = ends if ends and ends[0] is not None else (0, 0)
    width = math.ceil((last - first + 1) / POINTS)
    names = [name for (name,) in rows.connection.execute(f"SELECT DISTINCT name FROM {view}").fetchall()]  # noqa: S608
    names.sort(key=lambda name: (FIRST.index(name) if name in FIRST else len(FIRST), name))
    made = [_curve(rows, view, name, first, width) for name in names[:MOST_CURVES]]
    return RunCurves(made, max(0, len(names) - MOST_CURVES))


def _curve(rows: Rows, view: str, name: str, first: int, width: int) -> dict[str, object]:
    query = (
        # Summed in this order, so that the last digits do not depend on threads.
        "SELECT min(step), avg(value ORDER BY rank, step) FILTER (isfinite(value)), "  # noqa: S608
        "min(value) FILTER (isfinite(value)), "
        "max(value) FILTER (isfinite(value)), min(step) FILTER (NOT isfinite(value)) "
        f"FROM {view} WHERE name = ? AND step IS NOT NULL GROUP BY (step - ?) // ? ORDER BY 1"
    )
    points = rows.connection.execute(query, [name, first, width]).fetchall()
    steps, mean, low, high, bad = zip(*points, strict=True)
    finite = [value is not None and math.isfinite(value) for value in mean]
    return {
        "name": name,
        "steps": steps,
        "mean": [value if good else None for value, good in zip(mean, finite, strict=True)],
        "low": low,
        "high": high,
        "bad": [step for step in bad if step is not None],
        "width": width,
    }


def run_section(found: RunCurves) -> list[PageSection]:
    """Return the section of the curves; none without curves."""
    if not found.curves:
        return []
    more = f" {found.left_out} more {plural(found.left_out, 'number')} are in the files." if found.left_out else ""
    text = (
        "The line is the mean over ranks, the band reaches from the lowest to the highest value; red marks stand for "
        f"values that are not finite.{more}"
    )
    return [PageSection("run", "Run", f'<p class="quiet">{text}</p><div id="run-curves" class="curves"></div>')]
