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
    steps, total, rows, *sums = table.connection.execute(query, [first]).fetchone() or (0, None, 0)
    if not total:
        return []
    triples = zip(table.phases, sums[0::3], sums[1::3], sums[2::3], strict=True)
    times = [
        PhaseTime(phase_name(name), seconds / ranks, seconds / total, number, seconds / count)
        for name, seconds, count, number in triples
        if count
    ]
    times.sort(key=lambda time: -time.seconds)
    rest = max(0.0, total / ranks - sum(time.seconds for time in times))
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
    """Collectives of all ranks in the sampled steps of known duration: all but the first step."""

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
    rows_of_calls = (
        f"FROM {view} SEMI JOIN (SELECT rank, step FROM {TABLE} WHERE isfinite(step_seconds)) AS t USING (rank, step) "  # noqa: S608 - our own words
        f"WHERE name LIKE '{OUTPUT}' AND step >= {first}"
    )
    query = (
        "SELECT name, sum(count) FILTER (isfinite(count)), sum(bytes) FILTER (isfinite(bytes)), "
        "sum(seconds) FILTER (isfinite(seconds)), sum(bytes) FILTER (isfinite(bytes) AND isfinite(seconds)) "
        f"{rows_of_calls} GROUP BY name ORDER BY name"
    )
    sites: dict[tuple[str, str], _Sums] = {}
    total = _Sums()
    for name, *numbers in connection.execute(query).fetchall():
        for sums in (sites.setdefault(call_site(name), _Sums()), total):
            sums.add(*numbers)
    if not sites:
        return None
    steps, whole = _sampled(table, rows_of_calls)
    sites_by_time = sorted(
        (CallSite(*place, *sums.numbers(whole)) for place, sums in sites.items()),
        key=lambda call: (-call.seconds if isfinite(call.seconds) else 0.0, call.operation, call.site),
    )
    return Communication(tuple(sites_by_time), steps, *total.numbers(whole))


class _Sums:
    """Sums over calls."""

    def __init__(self) -> None:
        self._calls = self._bytes = self._timed = 0.0
        self._seconds = nan

    def add(self, calls: float | None, size: float | None, seconds: float | None, timed: float | None) -> None:
        """Add calls, their bytes and seconds, and the bytes of those whose seconds are known."""
        self._calls += calls or 0.0
        self._bytes += size or 0.0
        self._timed += timed or 0.0
        if seconds is not None:
            self._seconds = seconds + (self._seconds if isfinite(self._seconds) else 0.0)

    def numbers(self, whole: float) -> tuple[float, float, float, float, float]:
        """Return calls, bytes, seconds, the share of ``whole`` seconds, and bytes a second."""
        share = self._seconds / whole if whole > 0 else nan
        rate = self._timed / self._seconds if self._timed and self._seconds > 0 else nan
        return self._calls, self._bytes, self._seconds, share, rate


def _sampled(table: StepTable, rows_of_calls: str) -> tuple[int, float]:
    """Return the number of sampled steps with a collective, and the seconds of these steps over all ranks."""
    table.connection.execute(
        f"CREATE OR REPLACE TEMP TABLE {WAITS} AS SELECT rank, step::INTEGER AS step, sum(seconds) AS waited "
        f"{rows_of_calls} GROUP BY rank, step"
    )
    row = table.connection.execute(
        f"SELECT count(DISTINCT step), sum(step_seconds) FROM {WAITS} JOIN {TABLE} USING (rank, step)"  # noqa: S608
    ).fetchone()
    return row or (0, nan)
