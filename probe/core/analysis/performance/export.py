"""JSON of a performance, for ``--json``: a stable structure, with null for numbers that are unknown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite
from typing import Any, NamedTuple

import numpy as np

from probe.core.analysis.performance.analyse import Performance, performance
from probe.core.analysis.performance.slow_ranks import RankPace
from probe.core.analysis.performance.step_table import NoNumbersError
from probe.core.analysis.performance.summary import performance_tables, summary_lines
from probe.core.analysis.performance.throughput import FORMULA
from probe.core.language import in_language
from probe.core.storage.directories import RecordedRun
from probe.core.storage.duckdb_reader import Rows
from probe.core.storage.location import Place
from probe.core.storage.problems import Problems

SCHEMA = 1
"""Version of the structure; increased when a reader of the older one would be wrong. Keys may be added."""
POINTS = 500
"""Most points of the curve; each is the median of as many steps as needed."""


def as_json(result: Performance, problems: Problems) -> dict[str, Any]:
    """Export a performance whole."""
    exported: dict[str, Any] = {
        "schema": SCHEMA,
        "run": result.run.name,
        "hours": result.hours,
        "ranks": len(result.run.ranks),
        "missing_ranks": result.run.missing,
        "steps": {name: getattr(result.span, name) for name in ("first", "last", "number", "seconds", "skipped")},
        "step_seconds": _step_seconds(result),
        "throughput": {
            "judged": result.rates[0].unit,
            "rates": result.rates,
            "healthy": result.levels.healthy,
            "best": result.levels.best,
            "slow_start": result.levels.slow_start,
            "drops": result.drops,
        },
        "phases": result.phases,
        "communication": result.communication,
        "stragglers": result.slow,
        "learning_rate": result.stretches,
        "devices": {"utilization_percent": result.devices.utilization_percent, **result.devices._asdict()},
        "efficiency": {**result.efficiency._asdict(), "formula": FORMULA},
        "own_cost": result.costs,
        "found": result.found,
        "problems": [str(problem) for problem in problems.kept],
        "skipped": problems.skipped,
    }
    return {name: without_nan(value) for name, value in exported.items()}


def _step_seconds(result: Performance) -> dict[str, Any]:
    paces = [pace for pace in result.paces if isfinite(pace.median)]
    slowest = max(paces, key=lambda pace: pace.median, default=None)
    fastest = min(paces, key=lambda pace: pace.median, default=None)
    return {
        **{name: getattr(result.span, name) for name in ("median", "p95", "longest", "longest_step")},
        "slowest_rank": slowest.rank if slowest else None,
        "fastest_rank": fastest.rank if fastest else None,
        "spread": slowest.median / fastest.median if slowest and fastest else None,
        "by_rank": result.paces,
    }


def without_nan(value: Any) -> Any:
    """Return ``value`` in the types of JSON: named tuples as objects, null for numbers that are not finite."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {str(name): without_nan(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(item) for item in value]
    if isinstance(value, float) and not isfinite(value):
        return None
    return value


class PerformancePicture(NamedTuple):
    """Performance as data."""

    data: dict[str, object] | None
    """None if the run has no seconds of its steps."""
    paces: Sequence[RankPace] = ()
    """Seconds of the steps of each rank."""


def performance_picture(rows: Rows, run: RecordedRun, root: Place) -> PerformancePicture:
    """Return the performance of the run in ``rows``."""
    try:
        result = performance(rows, run, root)
    except NoNumbersError:
        return PerformancePicture(None)
    data = {**_texts(result, "en"), "zh": _texts(result, "zh_CN"), **_curve(result)}
    return PerformancePicture(data, result.paces)


def _texts(result: Performance, language: str) -> dict[str, object]:
    def texts(parts: Iterable[str]) -> list[str]:
        return [in_language(part, language) for part in parts]

    tables = [
        {"title": in_language(title, language), "header": texts(header), "rows": [*map(texts, rows)]}
        for title, header, rows in performance_tables(result)
    ]
    return {"lines": texts(summary_lines(result)), "tables": tables}


def _curve(result: Performance) -> dict[str, object]:
    """Return the points of the curve, the healthy throughput, and the drops by their first and last step."""
    steps, speeds = result.series.steps, result.speeds
    bins = np.array_split(np.arange(len(steps)), min(POINTS, len(steps)))
    points = [(int(steps[part[0]]), speeds[part][np.isfinite(speeds[part])]) for part in bins]
    healthy = result.levels.healthy
    return {
        "unit": result.rates[0].unit,
        "steps": [step for step, _ in points],
        "speeds": [float(np.median(some)) if len(some) else None for _, some in points],
        "healthy": healthy.speed if healthy else None,
        "drops": [[drop.first_step, drop.last_step, drop.factor] for drop in result.drops],
    }
