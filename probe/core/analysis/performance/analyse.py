"""Performance of a run, from the files of all ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from typing import NamedTuple

import numpy as np

from probe.core.analysis.performance.devices import Devices, devices
from probe.core.analysis.performance.loss_stretches import LossStretch, loss_stretches
from probe.core.analysis.performance.slow_ranks import RankPace, SlowRank, rank_paces, slow_ranks
from probe.core.analysis.performance.step_table import NoNumbersError, RunSeries, StepTable
from probe.core.analysis.performance.throughput import (
    LOW,
    Drop,
    Efficiency,
    Flags,
    Numbers,
    ThroughputLevels,
    efficiency,
    judged,
)
from probe.core.analysis.performance.time_use import Communication, PhaseTime, communication, phase_times
from probe.core.naming import STEP_SECONDS, THROUGHPUT, TOKENS_PER_SECOND
from probe.core.storage.directories import RankDirectory, RecordedRun, last_run
from probe.core.storage.duckdb_reader import Connection, Rows
from probe.core.storage.layout import COST_COLUMNS, COSTS
from probe.core.storage.location import Place
from probe.core.storage.packed.run import packed_index
from probe.core.storage.problems import Problems
from probe.core.storage.side_files import PACKED_COSTS, costs_source, packed_costs_source

AFTER_RESUME = 20
"""Steps after a resume that are not judged, as those at the beginning of the run are not."""
STEPS, SAMPLES, TOKENS = "steps", "samples", "tokens"
NAN = float("nan")


class StepSpan(NamedTuple):
    """Steps that the analysis is about."""

    first: int
    last: int
    number: int
    seconds: float
    """Sum of the seconds of the steps, each the median of the ranks."""
    skipped: int
    """Steps whose update a gradient scaler has skipped."""
    median: float
    """Median of the seconds of a step."""
    p95: float
    longest: float
    longest_step: int


class Rate(NamedTuple):
    """Throughput in one unit, a second and rank."""

    unit: str
    """``samples``, ``tokens`` or ``steps``."""
    ranks: int
    """Ranks that have logged it."""
    average: float
    """Over all time of the steps that have it."""
    best: float
    """In the best stable stretch of the run; NaN if no stretch is stable."""
    now: float
    """Median of the last steps."""


@dataclass(frozen=True)
class Performance:
    """Performance of a run, or of its last hours."""

    run: RecordedRun
    hours: float | None
    span: StepSpan
    paces: list[RankPace]
    rates: list[Rate]
    """The first is the one that is judged."""
    levels: ThroughputLevels
    """Judgement of the first rate over the whole run."""
    drops: list[Drop]
    """Drops that reach into the steps of the analysis."""
    phases: list[PhaseTime]
    communication: Communication | None
    slow: list[SlowRank]
    stretches: list[LossStretch]
    devices: Devices
    efficiency: Efficiency
    costs: list[RankCost]
    series: RunSeries
    """Numbers of all steps of the run, also where ``hours`` limits the rest."""
    speeds: Numbers
    """The throughput that is judged, of each step in ``series``."""
    usual: Flags
    """False for steps that were not judged."""

    @property
    def found(self) -> list[str]:
        """Kinds of what was found: ``drop``, ``straggler``, ``rating``."""
        low = self.efficiency.rating in LOW
        kinds = {"drop": bool(self.drops), "straggler": bool(self.slow), "rating": low}
        return [kind for kind, is_found in kinds.items() if is_found]


def analysed(
    root: Place, hours: float | None = None, observe: Callable[[str], object] = lambda _: None
) -> tuple[Performance, Problems]:
    """Analyse the last run in ``root``.

    Args:
        hours: limit to so many hours of training before its last step; drops are measured against the first healthy
            stretch of the whole run all the same.
        observe: called with a line about each task as it begins.

    Raises:
        NoNumbersError: if the run has no numbers of its steps.
        ValueError: if there is no run in ``root``.
        ImportError: if DuckDB is missing.
    """
    problems = Problems()
    run = last_run(root, problems)
    observe(f"reading the numbers of {len(run.ranks)} ranks")
    with Rows(run.directories, problems) as rows:
        try:
            result = performance(rows, run, root, hours)
        except NoNumbersError as error:
            advice = "set run.enable: true, or log one with monitor.log; the seconds of steps come with it"
            raise NoNumbersError("\n".join([f"{root}: {error}: {advice}", *problems.lines()])) from None
    return result, problems


def performance(rows: Rows, run: RecordedRun, root: Place, hours: float | None = None) -> Performance:
    """Analyse ``rows``, the files of ``run`` in ``root``; see :func:`analysed`."""
    table = StepTable(rows)
    whole = table.series()
    first = whole.since(hours)
    scope = whole.from_step(first)
    unit, speeds = _judged_unit(whole)
    usual = whole.usual & ~_resuming(run, whole)
    levels = judged(whole.steps, speeds, usual)
    rates = _rates(table, whole, usual, first, unit, levels)
    calls = communication(rows, table, first)
    span, paces = _span(table, scope), rank_paces(table, first)
    stages = {directory.rank: directory.manifest.pipeline_stage for directory in run.directories}
    use = devices(table, first, root, min(directory.began for directory in run.directories), hours, rows.problems)
    result = Performance(
        run=run,
        hours=hours,
        span=span,
        paces=paces,
        rates=rates,
        levels=levels,
        drops=[drop for drop in levels.drops if drop.last_step >= first],
        phases=phase_times(table, first),
        communication=calls,
        slow=slow_ranks(table, first, calls is not None, stages, span.median),
        stretches=loss_stretches(scope.steps, scope.rates, scope.losses, scope.not_finite),
        devices=use,
        efficiency=efficiency(use.utilization_percent, rates[0].average, rates[0].best),
        costs=rank_costs(rows.connection, run.directories, first),
        series=whole,
        speeds=speeds,
        usual=usual,
    )
    table.close()
    return result


def _judged_unit(series: RunSeries) -> tuple[str, Numbers]:
    """Return the throughput that is judged: tokens, else samples, if most steps have them, else steps a second."""
    for unit, speeds in ((TOKENS, series.tokens), (SAMPLES, series.samples)):
        if 2 * np.isfinite(speeds).sum() > len(speeds):
            return unit, speeds
    return STEPS, _steps_a_second(series)


def _steps_a_second(series: RunSeries) -> Numbers:
    with np.errstate(divide="ignore"):
        return 1 / series.seconds


def _resuming(run: RecordedRun, series: RunSeries) -> Flags:
    """Return the steps that follow upon a resume."""
    begins = sorted({directory.first_step for directory in run.directories})[1:]
    later = {directory.first_step for directories in run.by_rank().values() for directory in directories[1:]}
    after = np.zeros(len(series.steps), dtype=np.bool_)
    for begin in begins:
        if begin in later:
            at = int(np.searchsorted(series.steps, begin))
            after[at : at + AFTER_RESUME] = True
    return after


def _rates(
    table: StepTable, series: RunSeries, usual: Flags, first: int, unit: str, levels: ThroughputLevels
) -> list[Rate]:
    """Return the rates that are known, the one that is judged first."""
    columns = {
        TOKENS: (TOKENS_PER_SECOND, series.tokens),
        SAMPLES: (THROUGHPUT, series.samples),
        STEPS: (STEP_SECONDS, _steps_a_second(series)),
    }
    rates = []
    for name, (column, speeds) in sorted(columns.items(), key=lambda pair: pair[0] != unit):
        judgement = levels if name == unit else judged(series.steps, speeds, usual)
        mask = (series.steps >= first) & np.isfinite(speeds) & np.isfinite(series.seconds)
        if mask.any():
            average = float((speeds * series.seconds)[mask].sum() / series.seconds[mask].sum())
            ranks = sum(1 for _, number in table.of_ranks(f"count({column})", first) if number)
            rates.append(Rate(name, ranks, average, judgement.best.speed if judgement.best else NAN, judgement.now))
    return rates or [Rate(unit, 0, NAN, NAN, NAN)]


def _span(table: StepTable, scope: RunSeries) -> StepSpan:
    seconds = scope.seconds[np.isfinite(scope.seconds)]
    skipped = table.skipped(int(scope.steps[0]))
    half, high = (float(value) for value in np.quantile(seconds, (0.5, 0.95))) if len(seconds) else (NAN, NAN)
    longest = int(np.nanargmax(scope.seconds)) if len(seconds) else 0
    return StepSpan(
        int(scope.steps[0]),
        int(scope.steps[-1]),
        len(scope.steps),
        float(seconds.sum()),
        skipped,
        half,
        high,
        float(scope.seconds[longest]),
        int(scope.steps[longest]),
    )


class RankCost(NamedTuple):
    """Cost on one rank."""

    rank: int
    steps: int
    """Collected steps."""
    step_seconds: float
    """Mean seconds of a collected step for hooks, drain and device; NaN if there is no file of costs."""
    overhead: float
    """Time of the monitor as a part of training's time without it, up to the last collected step; NaN if unknown."""
    faults: int
    """Errors inside the monitor, according to the manifest."""


def rank_costs(connection: Connection, directories: Sequence[RankDirectory], first: int) -> list[RankCost]:
    """Return the cost on each rank from step ``first`` on; none of ranks about which nothing is known."""
    sums_by_directory = _read(connection, directories, first)
    costs: dict[int, RankCost] = {}
    for directory in directories:  # a later directory of a rank continues an earlier one
        steps, seconds, overhead = sums_by_directory.get(str(directory.path), (0, 0.0, nan))
        before = costs.get(directory.rank, RankCost(directory.rank, 0, nan, nan, 0))
        number = before.steps + steps
        total = seconds + (before.step_seconds * before.steps if before.steps else 0.0)
        costs[directory.rank] = RankCost(
            directory.rank,
            number,
            total / number if number else nan,
            overhead if isfinite(overhead) else before.overhead,
            before.faults + sum(directory.manifest.faults.values()),
        )
    return [cost for _, cost in sorted(costs.items()) if cost.steps or cost.faults]


def _read(
    connection: Connection, directories: Sequence[RankDirectory], first: int
) -> Mapping[str, tuple[int, float, float]]:
    """Return the collected steps, the sum of their seconds and the last overhead of each directory that has a file."""
    source, paths = _source(directories)
    if not paths:
        return {}
    step, *parts, overhead = COST_COLUMNS
    query = (
        f"SELECT filename, count(*) FILTER ({step} >= ?), "  # noqa: S608 - our own words, paths are literals
        f"coalesce(sum({' + '.join(parts)}) FILTER ({step} >= ?), 0), arg_max({overhead}, {step}) "
        f"FROM {source} WHERE {step} IS NOT NULL GROUP BY filename"
    )
    rows = connection.execute(query, [first, first]).fetchall()
    return {paths[path]: (steps, seconds, nan if part is None else part) for path, steps, seconds, part in rows}


def _source(directories: Sequence[RankDirectory]) -> tuple[str, Mapping[str, str]]:
    """Return SQL that reads the costs, and for each file name in it the path of the directory."""
    packed = [directory for directory in directories if directory.packed is not None]
    if not packed:
        files = {path: str(d.path) for d in directories if (path := d.path / COSTS).is_file()}
        return costs_source(list(files)), {str(path): directory for path, directory in files.items()}
    root = packed[0].path.parent
    index = packed_index(root)
    if index.table(PACKED_COSTS) is None:
        return "", {}
    positions = index.directories["position"]
    folders = [(d.rank, positions[d.packed], d.path) for d in packed if d.packed is not None]
    return packed_costs_source(root, folders), {str(d.path): str(d.path) for d in packed}
