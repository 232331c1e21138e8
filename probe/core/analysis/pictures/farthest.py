"""Ranks that are farthest from their replicas: of each signal, and by the seconds of their steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from heapq import nsmallest
from math import isfinite
from statistics import median_low
from typing import Any, NamedTuple

from probe.core.analysis.diagnosis.replicas import KEYS, TOLERANCE
from probe.core.analysis.performance.slow_ranks import RankPace
from probe.core.analysis.pictures.layout import FEW_RANKS, ReportPlan
from probe.core.analysis.pictures.rank_table import RankTable
from probe.core.analysis.pictures.run_cells import CellWork, RunSource
from probe.core.analysis.pictures.survey import principal
from probe.core.analysis.pieces import Piece
from probe.core.naming import STEP_SECONDS
from probe.core.storage.duckdb_reader import Rows, fill
from probe.core.storage.layout import HOLDS_NO_TERM_SQL, PART_SQL, STAGE
from probe.core.storage.sql import quoted

MOST = 50
"""Most ranks that are listed of a signal."""
PACE = STEP_SECONDS


class FarRank(NamedTuple):
    """Place at which a rank is farthest from its replicas; the farthest of several is the lowest."""

    minus_factor: float
    """Factor between its magnitude and the median of its replicas (the larger by the smaller), negated."""
    step: int
    micro_step: int
    vpp_stage: int
    name: str
    part: str
    """Part of the tensor; empty for a whole one."""
    call: int
    value: float
    median: float
    rank: int


FarRanks = dict[str, list[FarRank]]
"""For each signal the farthest ranks, in order."""


def far_ranks(rows: Rows, _: Piece | None, table: RankTable, plan: ReportPlan) -> FarRanks:
    """Farthest ranks of each signal in ``rows``, which have all ranks of a range of steps."""
    listed = zip(table.ranks.tolist(), table.groups().tolist(), strict=True)
    fill(rows.connection, "replicas", {"rank": "INTEGER", "replicas": "INTEGER"}, listed)
    found: FarRanks = {}
    for signal in plan.signals:
        op = principal(signal.ops)
        if signal.signal in rows.signals and op in rows.numbers(signal.signal):
            query = _query(rows.view(signal.signal), op, experts=table.experts)
            of_ranks = rows.connection.execute(query).fetchall()
            found[signal.signal] = [FarRank._make((*place.values(), rank)) for rank, place in of_ranks]
    return found


def _query(view: str, op: str, experts: bool) -> str:
    """SQL of the farthest ranks, each with its farthest place."""
    conditions = [f"{quoted(op)} IS NOT NULL", HOLDS_NO_TERM_SQL]
    conditions += ["name NOT LIKE '%experts%'"] if experts else []
    return f"""
WITH own AS (
    SELECT replicas, rank, {KEYS}, {PART_SQL} AS part, abs({quoted(op)}) AS size, {quoted(op)} AS value
    FROM {view} JOIN replicas USING (rank) WHERE {" AND ".join(conditions)}),
middles AS (
    SELECT replicas, {KEYS}, part, quantile_disc(size, 0.5) FILTER (isfinite(size)) AS middle
    FROM own GROUP BY replicas, {KEYS}, part HAVING count(*) > 1),
apart AS (
    SELECT own.*, middle, CASE WHEN NOT isfinite(size) THEN 'inf'::DOUBLE WHEN size = middle THEN 1
        WHEN size = 0 OR middle = 0 THEN 'inf'::DOUBLE ELSE greatest(size / middle, middle / size) END AS factor
    FROM own JOIN middles ON own.replicas = middles.replicas AND own.part = middles.part
        AND {" AND ".join(f"own.{key} IS NOT DISTINCT FROM middles.{key}" for key in KEYS.split(", "))}
    WHERE middle IS NOT NULL)
SELECT rank, min({{'minus': -factor, 'step': step, 'micro_step': coalesce(micro_step, 0),
    'vpp_stage': coalesce(vpp_stage, 0), 'name': coalesce(name, ''), 'part': part, 'call': coalesce(call, 0),
    'value': value, 'middle': middle}}) AS farthest
FROM apart WHERE factor > {1 + TOLERANCE} GROUP BY rank ORDER BY farthest, rank LIMIT {MOST}
"""  # noqa: S608 - our own words, and quoted names


def farthest(found: Iterable[FarRanks]) -> FarRanks:
    """Farthest ranks of several ranges of steps together."""
    best: dict[str, dict[int, FarRank]] = {}
    for part in found:
        for signal, ranks in part.items():
            own = best.setdefault(signal, {})
            for far in ranks:
                own[far.rank] = min(own.get(far.rank, far), far, key=_order)
    return {signal: nsmallest(MOST, own.values(), key=_order) for signal, own in best.items()}


def _order(far: FarRank) -> tuple[object, ...]:
    return (*far[:7], far.rank)


def far_paces(paces: Iterable[RankPace], table: RankTable) -> list[FarRank]:
    """Ranks whose median of the seconds of a step is farthest from that of their replicas."""
    groups: dict[int, list[RankPace]] = {}
    for pace in paces:
        if isfinite(pace.median) and pace.median > 0:
            groups.setdefault(int(table.groups()[table.position(pace.rank)]), []).append(pace)
    found = []
    for group in groups.values():
        middle = median_low(pace.median for pace in group)
        for pace in group:
            factor = max(pace.median / middle, middle / pace.median)
            if factor > 1 + TOLERANCE:
                found.append(FarRank(-factor, -1, 0, 0, PACE, "", 0, pace.median, middle, pace.rank))
    return nsmallest(MOST, found, key=_order)


class FarKind(NamedTuple):
    """Ranks that are farthest by one number."""

    signal: str
    """Empty for the seconds of a step."""
    op: str
    ranks: list[dict[str, Any]]


def far_picture(
    source: RunSource, work: CellWork, paces: Iterable[RankPace], observe: Callable[[str], object]
) -> list[FarKind] | None:
    """Ranks of a run with many that are farthest from their replicas, by signal and by the seconds of their steps; None
    of a run with few ranks, and if no rank is apart."""
    if len(work.table.ranks) <= FEW_RANKS or work.plan.ranks is None:
        return None
    observe("comparing replicas")
    found = farthest(source.by_steps(partial(far_ranks, table=work.table, plan=work.plan)))
    kinds = [
        _kind(signal.signal, principal(signal.ops), found[signal.signal])
        for signal in work.plan.signals
        if found.get(signal.signal)
    ]
    slowest = far_paces(paces, work.table)
    return kinds + [_kind("", PACE, slowest)] * bool(slowest) or None


def _kind(signal: str, op: str, ranks: Iterable[FarRank]) -> FarKind:
    return FarKind(signal, op, [_cells(far) for far in ranks])


def _cells(far: FarRank) -> dict[str, Any]:
    return {
        "rank": far.rank,
        "factor": f"{-far.minus_factor:.4g}",
        "value": f"{far.value:.6g}",
        "median": f"{far.median:.6g}",
        "step": None if far.step < 0 else far.step,
        "name": f"{far.name} ({far.part})" if far.part else far.name,
        STAGE: far.vpp_stage,
        "tensor": far.name,
    }
