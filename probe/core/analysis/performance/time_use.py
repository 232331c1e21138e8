"""Time of steps by phase, and communication by call site."""

from __future__ import annotations

from math import isfinite, nan
from typing import NamedTuple

from probe.core.analysis.performance.step_table import TABLE, StepTable, phase_name
from probe.core.storage.duckdb_reader import Rows
from probe.core.storage.layout import call_site

OTHER = "other"
OUTPUT = "%.post%"
"""Pattern of the rows about completed calls."""
WAITS = "performance_waits"


class PhaseTime(NamedTuple):
    """Time in one phase, over all ranks."""

    name: str | None
    """None for the rest: the time outside of every phase."""
    seconds: float
    """Mean of the ranks."""
    share: float
    """Part of the time of all steps."""
    steps: int
    """Steps that had the phase."""
    step_seconds: float
    """Mean seconds in a step that had it."""


def phase_times(table: StepTable, first: int) -> list[PhaseTime]:
    """Return the time by phase from step ``first`` on, the longest first, and the rest at the end."""
    ranks = len(table.ranks)
    cells = "".join(
        f", coalesce(sum({column}) FILTER (isfinite({column})), 0), count(*) FILTER ({column} > 0), "
        f"count(DISTINCT step) FILTER ({column} > 0)"
        for column in table.phases.values()
    )
    query = f"SELECT count(DISTINCT step), sum(step_seconds), count(*){cells} FROM {TABLE} WHERE step >= ? AND isfinite(step_seconds)"  # noqa: S608, E501
    steps, total, rows, *found = table.connection.execute(query, [first]).fetchone() or (0, None, 0)
    if not total:
        return []
    triples = zip(table.phases, found[0::3], found[1::3], found[2::3], strict=True)
    times = [
        PhaseTime(phase_name(name), seconds / ranks, seconds / total, number, seconds / count)
        for name, seconds, count, number in triples
        if count
    ]
    times.sort(key=lambda each: -each.seconds)
    rest = max(0.0, total / ranks - sum(each.seconds for each in times))
    return [*times, PhaseTime(None, rest, rest * ranks / total, steps, rest * ranks / rows)]


class CallSite(NamedTuple):
    """Collectives of one operation at one line of code, over all groups and ranks."""

    operation: str
    site: str
    calls: float
    bytes: float
    seconds: float
    """Time from call to completion, over all calls; NaN if none has completed."""
    share: float
    """Part of the time of the steps that were sampled; NaN if that is unknown. Calls that overlap count each."""
    bytes_per_second: float
    """Achieved rate of the calls with both numbers; NaN if there are none."""


class Communication(NamedTuple):
    """Collectives of the sampled steps of all ranks."""

    sites: tuple[CallSite, ...]
    """The longest first."""
    steps: int
    """Sampled steps with a collective."""
    calls: float
    bytes: float
    seconds: float
    share: float
    bytes_per_second: float


def communication(rows: Rows, table: StepTable, first: int) -> Communication | None:
    """Return the communication from step ``first`` on; None if no collective was recorded."""
    if OTHER not in rows.signals or not {"seconds", "bytes", "count"} <= set(rows.numbers(OTHER)):
        return None
    view, connection = rows.view(OTHER), rows.connection
    chosen = f"FROM {view} WHERE name LIKE '{OUTPUT}' AND step >= {first}"
    query = (
        "SELECT name, sum(count) FILTER (isfinite(count)), sum(bytes) FILTER (isfinite(bytes)), "  # noqa: S608 - our own view
        "sum(seconds) FILTER (isfinite(seconds)), sum(bytes) FILTER (isfinite(bytes) AND isfinite(seconds)) "
        f"{chosen} GROUP BY name ORDER BY name"
    )
    sites: dict[tuple[str, str], list[float]] = {}
    for name, *numbers in connection.execute(query).fetchall():
        own = sites.setdefault(call_site(name), [0.0, 0.0, nan, 0.0])
        for n, value in enumerate(numbers):
            if value is not None:
                own[n] = value + (own[n] if isfinite(own[n]) else 0.0)
    if not sites:
        return None
    steps, whole = _sampled(table, chosen)
    found = sorted(
        (_call_site(place, numbers, whole) for place, numbers in sites.items()),
        key=lambda each: (-each.seconds if isfinite(each.seconds) else 0.0, each.operation, each.site),
    )
    totals = [[numbers[n] for numbers in sites.values() if isfinite(numbers[n])] for n in range(4)]
    total = _call_site(("", ""), [sum(totals[0]), sum(totals[1]), sum(totals[2]) if totals[2] else nan, sum(totals[3])], whole)  # fmt: skip
    return Communication(tuple(found), steps, *total[2:])


def _sampled(table: StepTable, chosen: str) -> tuple[int, float]:
    """Return the number of sampled steps with a collective, and the seconds of these steps over all ranks."""
    table.connection.execute(
        f"CREATE OR REPLACE TEMP TABLE {WAITS} AS SELECT rank, step::INTEGER AS step, sum(seconds) AS waited "  # noqa: S608
        f"{chosen} GROUP BY rank, step"
    )
    found = table.connection.execute(
        f"SELECT count(DISTINCT w.step), sum(t.step_seconds) FILTER (isfinite(t.step_seconds)) FROM {WAITS} AS w "  # noqa: S608
        f"LEFT JOIN {TABLE} AS t USING (rank, step)"
    ).fetchone()
    steps, seconds = found or (0, None)
    return steps, nan if seconds is None else seconds


def _call_site(place: tuple[str, str], numbers: list[float], whole: float) -> CallSite:
    calls, size, seconds, timed = numbers
    rate = timed / seconds if timed and seconds > 0 else nan
    return CallSite(*place, calls, size, seconds, seconds / whole if whole > 0 else nan, rate)
