"""JSON of a performance, for ``--json``: a stable structure, with null for numbers that are unknown."""

from __future__ import annotations

from math import isfinite
from typing import Any

from probe.core.analysis.performance.analyse import Performance
from probe.core.analysis.performance.efficiency import FORMULA
from probe.core.storage.problems import Problems

SCHEMA = 1
"""Version of the structure; increased when a reader of the older one would be wrong. Keys may be added."""


def as_json(found: Performance, problems: Problems) -> dict[str, Any]:
    """Export a performance whole."""
    exported: dict[str, Any] = {
        "schema": SCHEMA,
        "run": found.run.name,
        "hours": found.hours,
        "ranks": len(found.run.ranks),
        "missing_ranks": found.run.missing,
        "steps": {name: getattr(found.span, name) for name in ("first", "last", "number", "seconds", "skipped")},
        "step_seconds": _step_seconds(found),
        "throughput": {
            "judged": found.rates[0].unit,
            "rates": found.rates,
            "healthy": found.levels.healthy,
            "best": found.levels.best,
            "slow_start": found.levels.slow_start,
            "drops": found.drops,
        },
        "phases": found.phases,
        "communication": found.communication,
        "stragglers": found.slow,
        "learning_rate": found.stretches,
        "devices": {"utilization_percent": found.devices.utilization_percent, **found.devices._asdict()},
        "efficiency": {**found.efficiency._asdict(), "formula": FORMULA},
        "own_cost": found.costs,
        "found": found.found,
        "problems": [str(problem) for problem in problems.kept],
        "skipped": problems.skipped,
    }
    return {name: without_nan(value) for name, value in exported.items()}


def _step_seconds(found: Performance) -> dict[str, Any]:
    known = [pace for pace in found.paces if isfinite(pace.median)]
    slowest = max(known, key=lambda pace: pace.median, default=None)
    fastest = min(known, key=lambda pace: pace.median, default=None)
    return {
        **{name: getattr(found.span, name) for name in ("median", "p95", "longest", "longest_step")},
        "slowest_rank": slowest.rank if slowest else None,
        "fastest_rank": fastest.rank if fastest else None,
        "spread": slowest.median / fastest.median if slowest and fastest else None,
        "by_rank": found.paces,
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
