"""Section about the performance of a run: throughput with its drops, time by phase, communication, the score."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from math import isfinite
from typing import NamedTuple

import numpy as np

from probe.core.analysis.performance.analyse import Performance, performance
from probe.core.analysis.performance.slow_ranks import RankPace
from probe.core.analysis.performance.step_table import NoNumbersError
from probe.core.analysis.report.page import PageSection
from probe.core.analysis.report.sections import facts, table
from probe.core.messages import plural
from probe.core.storage.directories import RecordedRun
from probe.core.storage.duckdb_reader import Rows
from probe.core.storage.location import Place

POINTS = 500
"""Most points of the curve; each is the median of as many steps as needed."""
MOST = 20
"""Most rows of a table."""


class PerformancePart(NamedTuple):
    """Section of a report, and the data of its script."""

    sections: list[PageSection]
    data: dict[str, object] | None
    """None without a section."""
    paces: Sequence[RankPace] = ()
    """Seconds of the steps of each rank."""


def performance_part(rows: Rows, run: RecordedRun, root: Place) -> PerformancePart:
    """Return the section about ``rows``; none if the run has no seconds of its steps."""
    try:
        found = performance(rows, run, root)
    except NoNumbersError:
        return PerformancePart([], None)
    unit = found.rates[0].unit
    html = (
        facts(_facts(found))
        + "".join(f"<p>{escape(line)}</p>" for line in _lines(found))
        + f'<h3>Throughput: {escape(unit)} a second and rank</h3><div id="throughput" class="plot"></div>'
        + _phases(found)
        + _calls(found)
    )
    return PerformancePart([PageSection("performance", "Performance", html)], _curve(found), found.paces)


def _facts(found: Performance) -> Iterator[tuple[str, object]]:
    rate, efficiency, span = found.rates[0], found.efficiency, found.span
    yield "a step", f"{_number(span.median)} s (median), {_number(span.p95)} s (95th percentile)"
    yield "throughput", f"{_number(rate.average)} {rate.unit} a second and rank on average, now {_number(rate.now)}"
    yield "best stretch", _number(rate.best)
    unknown = "unknown: there is no GPU utilization"
    yield "efficiency", f"{efficiency.score:.0f} of 100, {efficiency.rating}" if efficiency.rating else unknown


def _lines(found: Performance) -> Iterator[str]:
    if found.levels.healthy is None:
        yield "No stretch of throughput is stable, so that drops cannot be found."
    elif not found.drops:
        yield "No drop of throughput."
    for drop in found.drops[:MOST]:
        yield (
            f"Drop in steps {drop.first_step} to {drop.last_step}: {drop.factor:.2f} times as slow as in the first "
            f"healthy stretch."
        )
    for slow in found.slow[:MOST]:
        yield (
            f"Rank {slow.rank} takes {_number(slow.seconds)} s ({slow.number}), the other ranks "
            f"{_number(slow.expected)} s, in steps {slow.first_step} to {slow.last_step}."
        )


def _phases(found: Performance) -> str:
    if len(found.phases) < 2:  # the rest alone
        return ""
    rows = [
        (each.name or "(the rest)", _number(each.seconds), _share(each.share), each.steps, _number(each.step_seconds))
        for each in found.phases
    ]
    header = ("phase", "seconds a rank", "share", "steps", "seconds a step")
    return f'<h3>Time by phase</h3><div class="scroll">{table(header, rows, range(1, 5))}</div>'


def _calls(found: Performance) -> str:
    calls = found.communication
    if calls is None:
        return ""
    sites = calls.sites[:MOST]
    rows = [
        (
            c.operation,
            c.site,
            *map(_number, (c.calls, c.bytes, c.seconds)),
            _share(c.share),
            _number(c.bytes_per_second),
        )
        for c in sites
    ]
    header = ("operation", "site", "calls", "bytes", "seconds", "share", "bytes a second")
    more = f" The longest {MOST} of {len(calls.sites)} call sites." if len(calls.sites) > MOST else ""
    text = f"{calls.steps} sampled {plural(calls.steps, 'step')}, all ranks.{more}"
    return (
        f'<h3>Communication by call site</h3><p class="quiet">{text}</p>'
        f'<div class="scroll">{table(header, rows, range(2, 7))}</div>'
    )


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


def _number(value: float) -> str:
    return f"{value:.4g}" if isfinite(value) else "unknown"


def _share(value: float) -> str:
    return f"{100 * value:.1f} %" if isfinite(value) else "unknown"
