"""Performance of a run in sentences and tables, for the terminal and the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite
from typing import NamedTuple

from probe.core.analysis.performance.analyse import Performance
from probe.core.analysis.performance.throughput import Drop
from probe.core.messages import plural

MOST_ROWS = 12
"""Rows of a table at most; ``--json`` has all."""
BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


class PerformanceTable(NamedTuple):
    """Table of texts."""

    title: str
    header: tuple[str, ...]
    rows: list[tuple[str, ...]]


def summary_lines(performance: Performance) -> Iterator[str]:
    """Sentences about a performance."""
    span, efficiency = performance.span, performance.efficiency
    ranks = len(performance.run.ranks)
    yield (
        f"{performance.run.name}: {ranks} {plural(ranks, 'rank')}, steps {span.first} to {span.last}, "
        f"{duration(span.seconds)} of training"
    )
    skipped = f"; {span.skipped} skipped" if span.skipped else ""
    yield (
        f"A step takes {number(span.median, ' s')} in the median, {number(span.p95, ' s')} at the 95th percentile, "
        f"{number(span.longest, ' s')} at most (step {span.longest_step}){skipped}"
    )
    yield from _throughput(performance)
    for slow in performance.slow[:MOST_ROWS]:
        yield (
            f"Slow rank: rank {slow.rank} takes {number(slow.seconds, ' s')} ({slow.number}), the other ranks "
            f"{number(slow.expected, ' s')}, steps {slow.first_step} to {slow.last_step}"
        )
    if efficiency.rating:
        yield (
            f"Efficiency: {efficiency.score:.0f} of 100, {efficiency.rating} (GPU utilization "
            f"{efficiency.gpu_utilization:.0f} %, throughput {efficiency.throughput_percent:.0f} % of the best stretch)"
        )
    else:
        missing = [
            name
            for name, value in (
                ("GPU utilization", efficiency.gpu_utilization),
                ("a stable stretch of throughput", efficiency.throughput_percent),
            )
            if not isfinite(value)
        ]
        yield f"Efficiency: no score, {' and '.join(missing)} {plural(len(missing), 'is', 'are')} unknown"
    yield from _cost(performance)


def _throughput(performance: Performance) -> Iterator[str]:
    unit, levels = performance.rates[0].unit, performance.levels
    if levels.healthy is None:
        yield "Throughput: no stretch is stable, so that drops cannot be found"
        return
    healthy = levels.healthy
    yield (
        f"First healthy stretch: steps {healthy.first_step} to {healthy.last_step} with "
        f"{number(healthy.speed)} {unit} a second and rank"
    )
    if levels.slow_start:
        yield _drop("Slow start", levels.slow_start, unit)
    for drop in performance.drops[:MOST_ROWS]:
        yield _drop("Drop", drop, unit)
    if len(performance.drops) > MOST_ROWS:
        yield f"{len(performance.drops) - MOST_ROWS} more drops"
    if not performance.drops:
        yield "No drop of throughput"


def _drop(kind: str, drop: Drop, unit: str) -> str:
    end = ", and it lasts" if drop.lasting else ""
    return (
        f"{kind}: steps {drop.first_step} to {drop.last_step}, {drop.factor:.2f} times as slow "
        f"({number(drop.speed)} instead of {number(drop.expected)} {unit} a second and rank){end}"
    )


def _cost(performance: Performance) -> Iterator[str]:
    costs = [cost for cost in performance.costs if isfinite(cost.overhead)]
    faults = sum(cost.faults for cost in performance.costs)
    if costs:
        worst = max(costs, key=lambda cost: cost.overhead)
        yield (
            f"The monitor itself: at most {100 * worst.overhead:.2g} % of training's time (rank {worst.rank}), "
            f"{number(1000 * worst.step_seconds, ' ms')} in a collected step; {faults} {plural(faults, 'fault')}"
        )


def performance_tables(performance: Performance) -> Iterator[PerformanceTable]:
    """Tables of a performance that have rows."""
    return (table for table in _all_tables(performance) if table.rows)


def _all_tables(performance: Performance) -> Iterator[PerformanceTable]:
    yield _table(
        "Throughput, a second and rank",
        ("unit", "ranks", "average", "best stretch", "now"),
        [(r.unit, r.ranks, number(r.average), number(r.best), number(r.now)) for r in performance.rates],
    )
    yield _table(
        "Time by phase",
        ("phase", "seconds a rank", "share", "steps", "s a step"),
        [
            (
                phase.name or "(the rest)",
                number(phase.seconds),
                part(phase.share),
                phase.steps,
                number(phase.step_seconds),
            )
            for phase in performance.phases
        ],
    )
    calls = performance.communication
    yield _table(
        "Communication by call site" + (f" ({calls.steps} sampled {plural(calls.steps, 'step')})" if calls else ""),
        ("operation", "site", "calls", "bytes", "seconds", "share", "bytes a second"),
        [
            (c.operation, c.site, number(c.calls), size(c.bytes), number(c.seconds), part(c.share), size(rate))
            for c in (calls.sites if calls else ())
            for rate in [c.bytes_per_second]
        ],
    )
    yield from _rank_tables(performance)
    yield from _device_tables(performance)


def _rank_tables(performance: Performance) -> Iterator[PerformanceTable]:
    slowest = sorted((pace for pace in performance.paces if isfinite(pace.median)), key=lambda pace: -pace.median)
    yield _table(
        "Seconds of steps by rank, the slowest first",
        ("rank", "steps", "median", "95th percentile"),
        [(pace.rank, pace.steps, number(pace.median), number(pace.p95)) for pace in slowest if len(slowest) > 1],
    )
    yield _table(
        "Learning rate and loss",
        ("steps", "learning rate", "loss", "slope per 1,000 steps", "steps not finite"),
        [
            (
                f"{s.first_step}-{s.last_step}",
                _span(s.learning_rate_first, s.learning_rate_last),
                number(s.loss),
                number(s.slope),
                s.not_finite or "",
            )
            for s in performance.stretches
        ],
        len(performance.stretches),
    )


def _device_tables(performance: Performance) -> Iterator[PerformanceTable]:
    devices = performance.devices
    yield _table(
        "Memory and utilization, as logged",
        ("number", "mean", "highest", "on rank"),
        [(device.name, number(device.mean), number(device.highest), device.rank) for device in devices.logged],
    )
    yield _table(
        "Devices, as read by a performance monitor",
        ("file", "device", "name", "utilization", "memory", "highest memory", "highest temperature"),
        [
            (
                device.source,
                device.id,
                device.name,
                number(device.utilization_percent, " %"),
                number(device.memory_percent, " %"),
                number(device.highest_memory_percent, " %"),
                number(device.highest_temperature_celsius, " °C"),
            )
            for device in devices.devices
        ],
    )
    yield _table(
        "Machines, as read by a performance monitor",
        ("file", "readings", "CPU", "memory", "highest memory"),
        [
            (
                device.source,
                device.readings,
                *(
                    number(value, " %")
                    for value in (device.cpu_percent, device.memory_percent, device.highest_memory_percent)
                ),
            )
            for device in devices.hosts
        ],
    )


def _table(
    title: str, header: Sequence[str], rows: Sequence[Sequence[object]], most: int = MOST_ROWS
) -> PerformanceTable:
    more = f" (the first {most} of {len(rows)})" if len(rows) > most else ""
    return PerformanceTable(title + more, tuple(header), [tuple(map(str, row)) for row in rows[:most]])


def number(value: float, unit: str = "") -> str:
    """Return ``value`` with four digits and its unit; ``unknown`` for NaN."""
    return f"{value:.4g}{unit}" if isfinite(value) else "unknown"


def part(share: float) -> str:
    """Return a share in percent; ``unknown`` for NaN."""
    return f"{100 * share:.1f} %" if isfinite(share) else "unknown"


def size(value: float) -> str:
    """Return a number of bytes; ``unknown`` for NaN."""
    if not isfinite(value):
        return "unknown"
    power = 0
    while value >= 1024 and power < len(BINARY) - 1:
        value, power = value / 1024, power + 1
    return f"{value:.4g} {BINARY[power]}"


def duration(seconds: float) -> str:
    """Return seconds as hours and minutes where there are any."""
    minutes, hours = int(seconds // 60 % 60), int(seconds // 3600)
    return (
        f"{hours} h {minutes} min"
        if hours
        else f"{minutes} min {seconds % 60:.0f} s"
        if minutes
        else f"{seconds:.3g} s"
    )


def _span(first: float, last: float) -> str:
    return number(first) if first == last or not isfinite(last) else f"{number(first)} to {number(last)}"
