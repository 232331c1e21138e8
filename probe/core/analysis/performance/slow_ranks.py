"""Ranks side by side: their seconds a step, and those that take longer than the others for the same work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite
from typing import NamedTuple

from probe.core.analysis.performance.step_table import TABLE, StepTable
from probe.core.analysis.performance.time_use import WAITS
from probe.core.naming import OUTSIDE_SECONDS
from probe.core.run_state.rules.rule_memory import median
from probe.core.run_state.rules.straggler import SHARE, RunStragglerArgs, stragglers

BLOCKS = 50
"""Parts of a run in which ranks are compared, so that a rank is found that was slow for a while."""
LEAST = 5
"""Values of a rank in a part below which it is not compared."""


class RankPace(NamedTuple):
    """Seconds of the steps of one rank."""

    rank: int
    steps: int
    """Steps whose seconds are known."""
    median: float
    p95: float
    """NaN if no step's seconds are known."""


class SlowRank(NamedTuple):
    """Rank that takes longer than the others."""

    rank: int
    number: str
    """Number by which it was found: seconds outside of collectives, or of a phase."""
    seconds: float
    """Highest median of a part in which it stood out."""
    expected: float
    """Median of the other ranks in that part."""
    first_step: int
    last_step: int
    """Parts from the first to the last in which it stood out."""
    share: float
    """Share of the compared parts in which it stood out."""


def rank_paces(table: StepTable, first: int) -> list[RankPace]:
    """Return the pace of each rank from step ``first`` on."""
    is_finite = "FILTER (isfinite(step_seconds))"
    cells = f"count(*) {is_finite}, median(step_seconds) {is_finite}, quantile_cont(step_seconds, 0.95) {is_finite}"
    nan = float("nan")
    return [
        RankPace(rank, steps, nan if half is None else half, nan if high is None else high)
        for rank, steps, half, high in table.of_ranks(cells, first)
    ]


def slow_ranks(
    table: StepTable, first: int, has_calls: bool, stages: Mapping[int, int], step_seconds: float
) -> list[SlowRank]:
    """Return the ranks that stand out from step ``first`` on, the slowest first, as the rule RunStraggler judges: by
    the median of a part, against the median of the others, by its factor and its share of the step's time.

    Args:
        has_calls: true if collectives were recorded, so that the time outside of them can be computed if it was not
            logged.
        stages: pipeline stage of each rank; ranks are compared within one.
        step_seconds: median seconds of a step.
    """
    args = RunStragglerArgs.model_validate({})
    groups = stages if len(set(stages.values())) > 1 else None
    parts_by_rank: dict[tuple[int, str], list[SlowRank]] = {}
    for number, expression, source in _compared(table, has_calls):
        blocks = list(_blocks(table, expression, source, first))
        for low, high, medians in blocks:
            for slow in stragglers(medians, args.factor, SHARE * step_seconds, groups):
                part = SlowRank(slow.rank, number, slow.seconds, slow.expected, low, high, 1 / len(blocks))
                parts_by_rank.setdefault((slow.rank, number), []).append(part)
    together = [_together(parts) for parts in parts_by_rank.values()]
    return sorted(
        together, key=lambda slow_rank: (-slow_rank.share * (slow_rank.seconds - slow_rank.expected), slow_rank.rank)
    )


def _together(parts: list[SlowRank]) -> SlowRank:
    worst = max(parts, key=lambda part: part.seconds - part.expected)
    return worst._replace(
        first_step=min(part.first_step for part in parts),
        last_step=max(part.last_step for part in parts),
        share=min(1.0, sum(part.share for part in parts)),
    )


def _compared(table: StepTable, has_calls: bool) -> Iterator[tuple[str, str, str]]:
    """Yield the name of each number that is compared, its SQL, and the table that has it."""
    if table.has(OUTSIDE_SECONDS):
        yield OUTSIDE_SECONDS, OUTSIDE_SECONDS, TABLE
    elif has_calls:
        source = f"(SELECT rank, step, step_seconds - waited AS outside FROM {TABLE} JOIN {WAITS} USING (rank, step))"  # noqa: S608
        yield OUTSIDE_SECONDS, "outside", source
    for name in RunStragglerArgs.model_validate({}).numbers:
        if name in table.phases:
            yield name, table.phases[name], TABLE


def _blocks(table: StepTable, expression: str, source: str, first: int) -> Iterator[tuple[int, int, dict[int, float]]]:
    """Yield the first and the last step of each part with the medians of the ranks."""
    finite_rows = f"FROM {source} WHERE step >= {first} AND isfinite({expression})"
    ends = table.connection.execute(f"SELECT min(step), max(step), count(DISTINCT step) {finite_rows}").fetchone()
    low, high, number = ends or (None, None, 0)
    if low is None or high is None:
        return
    window = RunStragglerArgs.model_validate({}).window
    blocks = max(1, min(BLOCKS, number // window))
    width = -(-(high - low + 1) // blocks)
    for begin in range(low, high + 1, width):
        query = f"SELECT rank, median({expression}), count(*) {finite_rows} AND step BETWEEN ? AND ? GROUP BY rank"
        rows = table.connection.execute(query, [begin, begin + width - 1]).fetchall()
        medians = {rank: value for rank, value, count in rows if count >= LEAST and isfinite(value)}
        if len(medians) > 1:
            yield begin, min(begin + width - 1, high), medians


def middle(paces: list[RankPace]) -> float:
    """Return the median of the ranks' medians; NaN if there are none."""
    medians = [pace.median for pace in paces if isfinite(pace.median)]
    return median(medians) if medians else float("nan")
