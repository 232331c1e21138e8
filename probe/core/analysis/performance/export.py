"""JSON of a performance, for ``--json``: a stable structure, with null for numbers that are unknown."""

from __future__ import annotations

from math import isfinite
from typing import Any

from probe.core.analysis.performance.analyse import Performance
from probe.core.analysis.performance.efficiency import FORMULA
from probe.core.storage.problems import Problems

SCHEMA = 1
"""Version of the structure; increased when a reader of the older one would be wrong. Keys may be added."""


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
