"""Performance of a run in sentences and tables, for the terminal and the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite
from typing import NamedTuple

from probe.core.analysis.performance.analyse import Performance
from probe.core.analysis.performance.throughput import Drop
from probe.core.language import Message, joined, message
from probe.core.messages import plural

MOST_ROWS = 12
"""Rows of a table at most; ``--json`` has all."""
BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


class PerformanceTable(NamedTuple):
    """Table of texts."""

    title: str
    header: tuple[str, ...]
    rows: list[tuple[str, ...]]


def summary_lines(performance: Performance) -> Iterator[Message]:
    """Sentences about a performance."""
    span, efficiency = performance.span, performance.efficiency
    ranks = len(performance.run.ranks)
    head = plural(
        ranks,
        "{run}: {ranks} rank, steps {first} to {last}, {duration} of training",
        "{run}: {ranks} ranks, steps {first} to {last}, {duration} of training",
    )
    steps = {"first": span.first, "last": span.last, "duration": duration(span.seconds)}
    yield message(head, run=performance.run.name, ranks=ranks, **steps)
    yield message(
        "A step takes {median} in the median, {p95} at the 95th percentile, {longest} at most (step {step}){skipped}",
        median=number(span.median, " s"),
        p95=number(span.p95, " s"),
        longest=number(span.longest, " s"),
        step=span.longest_step,
        skipped=message("; {number} skipped", number=span.skipped) if span.skipped else "",
    )
    yield from _throughput(performance)
    for slow in performance.slow[:MOST_ROWS]:
        yield message(
            "Slow rank: rank {rank} takes {seconds} ({number}), the other ranks {expected}, steps {first} to {last}",
            rank=slow.rank,
            seconds=number(slow.seconds, " s"),
            number=slow.number,
            expected=number(slow.expected, " s"),
            first=slow.first_step,
            last=slow.last_step,
        )
    used, stable = efficiency.gpu_utilization, efficiency.throughput_percent
    if efficiency.rating:
        yield message(
            "Efficiency: {score:.0f} of 100, {rating} (GPU utilization {used:.0f} %, "
            "throughput {stable:.0f} % of the best stretch)",
            score=efficiency.score,
            rating=message(efficiency.rating),
            used=used,
            stable=stable,
        )
    elif isfinite(stable):
        yield message("Efficiency: no score, GPU utilization is unknown")
    yield from _cost(performance)


def _throughput(performance: Performance) -> Iterator[Message]:
    unit, levels = performance.rates[0].unit, performance.levels
    if levels.healthy is None:
        yield message("Throughput: no stretch is stable, so that drops cannot be found")
        return
    healthy = levels.healthy
    yield message(
        "First healthy stretch: steps {first} to {last} with {speed} {unit} a second and rank",
        first=healthy.first_step,
        last=healthy.last_step,
        speed=number(healthy.speed),
        unit=unit,
    )
    if levels.slow_start:
        yield _drop(message("Slow start"), levels.slow_start, unit)
    for drop in performance.drops[:MOST_ROWS]:
        yield _drop(message("Drop"), drop, unit)
    if len(performance.drops) > MOST_ROWS:
        yield message("{number} more drops", number=len(performance.drops) - MOST_ROWS)
    if not performance.drops:
        yield message("No drop of throughput")


def _drop(kind: str, drop: Drop, unit: str) -> Message:
    return message(
        "{kind}: steps {first} to {last}, {factor:.2f} times as slow "
        "({speed} instead of {expected} {unit} a second and rank){end}",
        kind=kind,
        first=drop.first_step,
        last=drop.last_step,
        factor=drop.factor,
        speed=number(drop.speed),
        expected=number(drop.expected),
        unit=unit,
        end=message(", and it lasts") if drop.lasting else "",
    )


def _cost(performance: Performance) -> Iterator[Message]:
    costs = [cost for cost in performance.costs if isfinite(cost.overhead)]
    faults = sum(cost.faults for cost in performance.costs)
    if costs:
        worst = max(costs, key=lambda cost: cost.overhead)
        text = plural(
            faults,
            "The monitor itself: at most {share:.2g} % of training's time (rank {rank}), "
            "{seconds} in a collected step; {faults} fault",
            "The monitor itself: at most {share:.2g} % of training's time (rank {rank}), "
            "{seconds} in a collected step; {faults} faults",
        )
        seconds = number(1000 * worst.step_seconds, " ms")
        yield message(text, share=100 * worst.overhead, rank=worst.rank, seconds=seconds, faults=faults)


def performance_tables(performance: Performance) -> Iterator[PerformanceTable]:
    """Tables of a performance that have rows."""
    return (table for table in _all_tables(performance) if table.rows)


def _all_tables(performance: Performance) -> Iterator[PerformanceTable]:
    yield _table(
        message("Throughput, a second and rank"),
        ("unit", "ranks", "average", "best stretch", "now"),
        [(r.unit, r.ranks, number(r.average), number(r.best), number(r.now)) for r in performance.rates],
    )
    yield _table(
        message("Time by phase"),
        ("phase", "seconds a rank", "share", "steps", "s a step"),
        [
            (
                phase.name or message("(the rest)"),
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
        message(
            plural(
                calls.steps,
                "Communication by call site ({steps} sampled step)",
                "Communication by call site ({steps} sampled steps)",
            ),
            steps=calls.steps,
        )
        if calls
        else "",
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
        message("Seconds of steps by rank, the slowest first"),
        ("rank", "steps", "median", "95th percentile"),
        [(pace.rank, pace.steps, number(pace.median), number(pace.p95)) for pace in slowest if len(slowest) > 1],
    )
    yield _table(
        message("Learning rate and loss"),
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
        message("Memory and utilization, as logged"),
        ("number", "mean", "highest", "on rank"),
        [(device.name, number(device.mean), number(device.highest), device.rank) for device in devices.logged],
    )
    yield _table(
        message("Devices, as read by a performance monitor"),
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
        message("Machines, as read by a performance monitor"),
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
    """Return a table without the columns of which nothing is known."""
    cells = [["–" if cell == UNKNOWN else str(cell) for cell in row] for row in rows]
    columns = [n for n in range(len(header)) if any(row[n] != "–" for row in cells)]
    more = message(" (the first {most} of {number})", most=most, number=len(rows)) if len(rows) > most else ""
    names = tuple(message(header[n]) for n in columns)
    return PerformanceTable(joined("", [title, more]), names, [tuple(row[n] for n in columns) for row in cells[:most]])


UNKNOWN = message("unknown")


def number(value: float, unit: str = "") -> str:
    """Return ``value`` with four digits and its unit; ``unknown`` for NaN."""
    return f"{value:.4g}{unit}" if isfinite(value) else UNKNOWN


def part(share: float) -> str:
    """Return a share in percent; ``unknown`` for NaN."""
    return f"{100 * share:.1f} %" if isfinite(share) else UNKNOWN


def size(value: float) -> str:
    """Return a number of bytes; ``unknown`` for NaN."""
    if not isfinite(value):
        return UNKNOWN
    power = 0
    while value >= 1024 and power < len(BINARY) - 1:
        value, power = value / 1024, power + 1
    return f"{value:.4g} {BINARY[power]}"


def duration(seconds: float) -> str:
    """Return seconds as hours and minutes where there are any."""
    minutes, hours = int(seconds // 60 % 60), int(seconds // 3600)
    if hours:
        return message("{hours} h {minutes} min", hours=hours, minutes=minutes)
    if minutes:
        return message("{minutes} min {seconds:.0f} s", minutes=minutes, seconds=seconds % 60)
    return f"{seconds:.3g} s"


def _span(first: float, last: float) -> str:
    if first == last or not isfinite(last):
        return number(first)
    return message("{first} to {last}", first=number(first), last=number(last))
