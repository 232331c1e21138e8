"""Performance of a run for the page: throughput with its drops, and the sentences and tables of the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from probe.core.analysis.performance.analyse import Performance, performance
from probe.core.analysis.performance.slow_ranks import RankPace
from probe.core.analysis.performance.step_table import NoNumbersError
from probe.core.analysis.performance.summary import performance_tables, summary_lines
from probe.core.language import in_language
from probe.core.storage.directories import RecordedRun
from probe.core.storage.duckdb_reader import Rows
from probe.core.storage.location import Place

POINTS = 500
"""Most points of the curve; each is the median of as many steps as needed."""


class PerformancePicture(NamedTuple):
    """Performance as data."""

    data: dict[str, object] | None
    """None if the run has no seconds of its steps."""
    paces: Sequence[RankPace] = ()
    """Seconds of the steps of each rank."""


def performance_picture(rows: Rows, run: RecordedRun, root: Place) -> PerformancePicture:
    """Return the performance of the run in ``rows``."""
    try:
        found = performance(rows, run, root)
    except NoNumbersError:
        return PerformancePicture(None)
    data = {**_texts(found, "en"), "zh": _texts(found, "zh_CN"), **_curve(found)}
    return PerformancePicture(data, found.paces)


def _texts(found: Performance, language: str) -> dict[str, object]:
    def texts(parts: Iterable[str]) -> list[str]:
        return [in_language(part, language) for part in parts]

    tables = [
        {"title": in_language(title, language), "header": texts(header), "rows": [*map(texts, rows)]}
        for title, header, rows in performance_tables(found)
    ]
    return {"lines": texts(summary_lines(found)), "tables": tables}


def _curve(found: Performance) -> dict[str, object]:
    """Return the points of the curve, the healthy throughput, and the drops by their first and last step."""
    steps, speeds = found.series.steps, found.speeds
    bins = np.array_split(np.arange(len(steps)), min(POINTS, len(steps)))
    points = [(int(steps[part[0]]), speeds[part][np.isfinite(speeds[part])]) for part in bins]
    healthy = found.levels.healthy
    return {
        "unit": found.rates[0].unit,
        "steps": [step for step, _ in points],
        "speeds": [float(np.median(some)) if len(some) else None for _, some in points],
        "healthy": healthy.speed if healthy else None,
        "drops": [[drop.first_step, drop.last_step, drop.factor] for drop in found.drops],
    }
