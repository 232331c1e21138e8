"""SignalComparison of data-parallel replicas over the files of all ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import nan
from typing import NamedTuple

from probe.core.analysis.diagnosis.located_finding import Located
from probe.core.analysis.diagnosis.topology import Topology
from probe.core.moments import OPS
from probe.core.naming import tag
from probe.core.records import Finding, Key
from probe.core.rules.replica import AnomalyReplica, odd_ones, replicated
from probe.core.storage.duckdb_reader import Rows, fill
from probe.core.storage.layout import HOLDS_NO_TERM_SQL, KEY, PART_SQL, key_of
from probe.core.storage.sql import quoted

RULE = AnomalyReplica.__name__
TOLERANCE = 2e-6
"""Relative difference of two numbers of six digits that may come from the order in which sums were added up."""
MOST = 20
"""Most tensors of a signal that are reported, at the first step at which any differs."""
SIZES = ("norm", "min", "max", "std", "zeros")
"""Ops that are compared. Means are left out where there is any of these: they cross zero."""
FIRST = -1
"""Order of such findings among those of the same signal: consequences of a corrupted value come after it."""
GROUP = "replica_groups"


class Difference(NamedTuple):
    """Tensor that differs between replicas."""

    signal: str
    step: int
    key: Key
    part: str
    rows: Mapping[int, Mapping[str, float]]
    """Numbers of each rank."""
    until: int
    """Last step at which any tensor of the signal differs."""


class SignalComparison(NamedTuple):
    """Result of comparing one signal."""

    differences: list[Difference]
    alien: bool
    """True if the ranks do not seem to be replicas at all: most of their tensors differ from the first step on."""


def compare(rows: Rows, topology: Topology, wanted: Sequence[int] = ()) -> tuple[list[Located], list[tuple[int, ...]]]:
    """Findings about tensors that differ between replicas, and groups of ranks that turn out to be no replicas.

    Args:
        wanted: steps to look at; all if empty.
    """
    groups = topology.replica_groups()
    signals = [signal for signal in rows.signals if replicated(signal)]
    if not groups or not signals:
        return [], []
    listed = [(rank, number) for number, group in enumerate(groups) for rank in group]
    fill(rows.connection, GROUP, {"rank": "INTEGER", "replicas": "INTEGER"}, listed)
    found: list[Located] = []
    aliens: list[tuple[int, ...]] = []
    for number, group in enumerate(groups):
        own: list[Located] = []
        for signal in signals:
            compared = _compare(rows, signal, number, topology, wanted)
            if compared.alien and not topology.says_replicas:
                aliens.append(group)
                own = []
                break
            own += [located for each in compared.differences for located in _findings(each, topology)]
        found += own
    return found, aliens


def _compare(rows: Rows, signal: str, group: int, topology: Topology, wanted: Sequence[int]) -> SignalComparison:
    numbers = [op for op in rows.numbers(signal) if op in SIZES] or [
        op for op in rows.numbers(signal) if op in OPS and op != "id"
    ]
    if not numbers:
        return SignalComparison([], alien=False)
    relation = _alike(rows, signal, numbers, group, topology, wanted)
    first, step, until, differing, of = rows.connection.execute(
        "SELECT min(step), min(step) FILTER (apart > 0), max(step) FILTER (apart > 0), "  # noqa: S608
        "arg_min(apart, step) FILTER (apart > 0), "
        "arg_min(of, step) FILTER (apart > 0) FROM (SELECT step, count(*) FILTER (differs) AS apart, count(*) AS of "
        f"FROM ({relation}) GROUP BY step)"
    ).fetchone()
    if step is None:
        return SignalComparison([], alien=False)
    alien = step == first and of > 1 and 2 * differing > of
    return SignalComparison(list(_differences(rows, signal, numbers, group, (step, until), relation)), alien)


KEYS = ", ".join(KEY)


def _source(rows: Rows, signal: str, numbers: Sequence[str], group: int) -> str:
    """Query for every row that replicas of a group should hold alike, with its part of the tensor."""
    chosen = ", ".join(f"{quoted(op)}" for op in numbers)
    return (
        f"SELECT rank, {KEYS}, {PART_SQL} AS part, {chosen} "  # noqa: S608 - our own words
        f"FROM {rows.view(signal)} JOIN {GROUP} USING (rank) WHERE replicas = {group} "
        f"AND {HOLDS_NO_TERM_SQL}"
    )


def _alike(
    rows: Rows, signal: str, numbers: Sequence[str], group: int, topology: Topology, wanted: Sequence[int]
) -> str:
    """Query for each row that several ranks have, with whether they differ."""
    differs = " OR ".join(_differs(quoted(op)) for op in numbers)
    experts = any(topology.place(rank).experts for rank in topology.ranks)
    conditions = ["name NOT LIKE '%experts%'"] if experts else []
    conditions += [f"step IN ({', '.join(str(int(step)) for step in wanted)})"] if wanted else []
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    return (
        f"SELECT {KEYS}, part, coalesce({differs}, false) AS differs "  # noqa: S608 - no word is a user's
        f"FROM ({_source(rows, signal, numbers, group)}){where} GROUP BY {KEYS}, part HAVING count(DISTINCT rank) > 1"
    )


def _differs(op: str) -> str:
    """Condition that the values of a group differ by more than rounding. NaN and Inf are excluded, since other rules
    report them; NaN is the largest number to DuckDB."""
    low, high = f"min({op})", f"max({op})"
    apart = f"{high} - {low} > {TOLERANCE} * greatest(abs({high}), abs({low}))"
    return f"(isfinite({low}) AND isfinite({high}) AND {apart})"


def _differences(
    rows: Rows, signal: str, numbers: Sequence[str], group: int, span: tuple[int, int], relation: str
) -> Iterator[Difference]:
    """Tensors that differ at the first step of ``span``, with the numbers of each rank."""
    step, until = span
    at = rows.connection.execute(
        f"SELECT vpp_stage, name, micro_step, call, part FROM ({relation}) "  # noqa: S608 - our own words
        f"WHERE differs AND step = {int(step)} ORDER BY ALL LIMIT {MOST}"
    ).fetchall()
    source = _source(rows, signal, numbers, group)
    for vpp_stage, name, micro_step, call, part in at:
        held = rows.connection.execute(
            f"SELECT rank, {', '.join(quoted(op) for op in numbers)} FROM ({source}) WHERE step = ? "  # noqa: S608
            "AND vpp_stage IS NOT DISTINCT FROM ? AND name = ? AND micro_step = ? AND call = ? AND part = ?",
            [step, vpp_stage, name, micro_step, call, part],
        ).fetchall()
        values = {
            rank: {op: nan if cell is None else float(cell) for op, cell in zip(numbers, cells, strict=True)}
            for rank, *cells in held
        }
        key = key_of(signal, name, micro_step, call, vpp_stage or 0)
        yield Difference(signal, step, key, part, values, until)


def _findings(difference: Difference, topology: Topology) -> Iterator[Located]:
    """Findings for each rank that differs from the majority; for all ranks if there is none."""
    split = odd_ones(difference.rows, TOLERANCE)
    if split is None:
        return
    for rank, value in zip(split.ranks, split.values, strict=True):
        where = tag(difference.signal, difference.key, rank, False)
        finding = Finding(
            rule=RULE,
            signal=difference.signal,
            key=difference.key,
            op=split.number,
            value=value,
            expected=split.expected,
            step=difference.step,
            rank=rank,
            order=FIRST,
            message=f"Rule {RULE} reports anomaly signal in ('{where}', '{split.number}') at step {difference.step}, "
            f"current value {value}. Replicas hold it differently: {split.text}.",
        )
        yield Located(finding, difference.step, topology.stage(rank), until=difference.until)
