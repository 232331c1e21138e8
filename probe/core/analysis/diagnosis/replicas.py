"""Comparison of data-parallel replicas over the files of all ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from probe.core.analysis.diagnosis.located_finding import Located
from probe.core.analysis.diagnosis.passes import Passes
from probe.core.analysis.diagnosis.topology import Topology
from probe.core.moments import OPS
from probe.core.naming import tag
from probe.core.records import Finding, Key
from probe.core.rules.replica import CHANGES, AnomalyReplica, Split, odd_ones, replicated
from probe.core.storage.duckdb_reader import Rows, fill
from probe.core.storage.layout import HOLDS_NO_TERM_SQL, KEY, NAME, PART_SQL, STEP, key_of
from probe.core.storage.sql import literal, quoted

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
    rows: dict[int, Mapping[str, float]]
    """Numbers of each rank."""
    until: int
    """Last step at which any tensor of the signal differs."""


class SignalComparison(NamedTuple):
    """Steps at which tensors of a signal differ within a group; steps are -1 for none."""

    first: int
    """First step at which several ranks have a tensor."""
    step: int = -1
    """First step at which any differs."""
    until: int = -1
    """Last step at which any differs."""

    def merged(self, other: SignalComparison) -> SignalComparison:
        """Comparison over the steps of both."""
        first, until = min(self.first, other.first), max(self.until, other.until)
        begun = [comparison for comparison in (self, other) if comparison.step >= 0]
        return min(begun, key=lambda comparison: comparison.step, default=self)._replace(first=first, until=until)


Compared = dict[tuple[str, int], SignalComparison]
"""By signal and number of the group."""


@dataclass(frozen=True)
class ReplicaComparison:
    """Comparison of all groups and signals in one pass over rows."""

    groups: tuple[tuple[int, ...], ...]
    numbers: Mapping[str, tuple[str, ...]]
    """Numbers that are compared, by signal."""
    experts: bool
    """True if replicas hold different experts."""
    wanted: tuple[int, ...] = ()
    """Steps to look at; all if empty."""
    proved: Mapping[str, tuple[Sequence[object], ...]] | None = None
    """By signal, the tensors that are compared, each as group and ``PLACE``; None to compare all, since the run names
    its replicas."""

    def __call__(self, rows: Rows) -> Compared:
        """Compare within each step of ``rows``."""
        self.fill(rows)
        differences: Compared = {}
        for signal in self.numbers:
            if signal in rows.signals:
                differences.update(self._signal(rows, signal))
        return differences

    def fill(self, rows: Rows) -> None:
        """Make the table of groups."""
        listed = [(rank, number) for number, group in enumerate(self.groups) for rank in group]
        fill(rows.connection, GROUP, {"rank": "INTEGER", "replicas": "INTEGER"}, listed)
        if self.proved is not None:
            proved = [(signal, *place) for signal, places in self.proved.items() for place in places]
            fill(rows.connection, PROVED, {"signal": "VARCHAR", "replicas": "INTEGER"} | PLACE, proved)

    def _signal(self, rows: Rows, signal: str) -> Compared:
        numbers = self._held(rows, signal)
        counts = (
            "SELECT replicas, step, count(*) FILTER (differs) AS apart "  # noqa: S608 - our own words
            f"FROM ({self._alike(signal, rows.view(signal), numbers)}) GROUP BY replicas, step"
        )
        query = (
            "SELECT replicas, min(step), min(step) FILTER (apart > 0), max(step) FILTER (apart > 0) "  # noqa: S608
            f"FROM ({counts}) WHERE step IS NOT NULL GROUP BY replicas"
        )
        records = rows.connection.execute(query).fetchall()
        return {
            (signal, group): SignalComparison(first, *((step, *rest) if step is not None else ()))
            for group, first, step, *rest in records
        }

    def _held(self, rows: Rows, signal: str) -> list[str]:
        numbers = rows.numbers(signal)
        return [op for op in self.numbers[signal] if op in numbers]

    def _source(self, view: str, numbers: Sequence[str]) -> str:
        """Query for every row that replicas should hold alike, with its part of the tensor."""
        columns = "".join(f", {quoted(op)}" for op in numbers)
        return (
            f"SELECT replicas, rank, {KEYS}, {PART_SQL} AS part{columns} "  # noqa: S608 - our own words
            f"FROM {view} JOIN {GROUP} USING (rank) WHERE {HOLDS_NO_TERM_SQL}"
        )

    def _alike(self, signal: str, view: str, numbers: Sequence[str]) -> str:
        """Query for each row that several ranks have, with whether they differ."""
        conditions = ["name NOT LIKE '%experts%'"] if self.experts else []
        conditions += [f"step IN ({', '.join(str(int(step)) for step in self.wanted)})"] if self.wanted else []
        if self.proved is not None:
            place = ", ".join(f"coalesce({name}, {_NOTHING[kind]})" for name, kind in PLACE.items())
            query = f"SELECT replicas, {', '.join(PLACE)} FROM {PROVED} WHERE signal = {literal(signal)}"  # noqa: S608
            conditions += [f"(replicas, {place}) IN ({query})"]
        return self._grouped(view, numbers, conditions)

    def _grouped(self, view: str, numbers: Sequence[str], conditions: Sequence[str], more: str = "") -> str:
        """Query for each row that several ranks have and that meets all conditions, with whether they differ."""
        differs = _differ([quoted(op) for op in numbers])
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        return (
            f"SELECT replicas, {KEYS}, part, coalesce({differs}, false) AS differs{more} "  # noqa: S608 - no word is a user's
            f"FROM ({self._source(view, numbers)}){where} GROUP BY replicas, {KEYS}, part "
            "HAVING count(DISTINCT rank) > 1"
        )

    def prove(self, rows: Rows, signal: str) -> list[tuple[object, ...]]:
        """Tensors that are copies as far as the first steps show: equal on all ranks of their group in ``CHANGES + 1``
        steps, and other numbers in each."""
        steps = [step for (step,) in rows.connection.execute(_FIRST_STEPS.format(rows.view(signal))).fetchall()]
        if len(steps) <= CHANGES:
            return []
        numbers = self._held(rows, signal)
        values = ", ".join(f"any_value({quoted(op)})" for op in numbers)
        conditions = ["name NOT LIKE '%experts%'"] if self.experts else []
        view = rows.between(signal, steps[0], steps[-1])
        place = ", ".join(f"coalesce({name}, {_NOTHING[kind]})" for name, kind in PLACE.items())
        query = (
            f"SELECT replicas, {place} FROM ({self._grouped(view, numbers, conditions, f', row({values}) AS held')}) "  # noqa: S608
            f"GROUP BY replicas, {place} HAVING NOT bool_or(differs) AND count(DISTINCT held) > {CHANGES}"
        )
        return [tuple(place) for place in rows.connection.execute(query).fetchall()]

    def aliens(self, rows: Rows, signal: str) -> list[int]:
        """Groups of which most tensors differ at the first step: they do not seem to be replicas."""
        steps = rows.connection.execute(_FIRST_STEPS.format(rows.view(signal))).fetchall()
        if not steps:
            return []
        view = rows.between(signal, steps[0][0], steps[0][0])
        query = (
            f"SELECT replicas FROM ({self._grouped(view, self._held(rows, signal), [])}) "  # noqa: S608 - our own words
            "GROUP BY replicas HAVING count(*) > 1 AND 2 * count(*) FILTER (differs) > count(*)"
        )
        return [group for (group,) in rows.connection.execute(query).fetchall()]

    def differences(
        self, rows: Rows, signal: str, begun: Mapping[int, SignalComparison]
    ) -> dict[int, list[Difference]]:
        """By group, the tensors of a signal that differ at the group's first step, with the numbers of each rank."""
        by_group: dict[int, dict[tuple[object, ...], Difference]] = {}
        numbers = self._held(rows, signal)
        by_step: dict[int, list[int]] = {}
        for group, compared in begun.items():
            by_step.setdefault(compared.step, []).append(group)
        for step, groups in sorted(by_step.items()):
            query = self._at(signal, rows.between(signal, step, step), numbers, groups)
            for group, vpp_stage, name, micro_step, call, part, rank, *cells in rows.connection.execute(
                query
            ).fetchall():
                key = key_of(signal, name, micro_step, call, vpp_stage or 0)
                new = Difference(signal, step, key, part, {}, begun[group].until)
                place = vpp_stage, name, micro_step, call, part
                difference = by_group.setdefault(group, {}).setdefault(place, new)
                pairs = zip(numbers, cells, strict=True)
                difference.rows[rank] = {op: float(cell) for op, cell in pairs if cell is not None}
        return {group: list(by_place.values()) for group, by_place in by_group.items()}

    def _at(self, signal: str, view: str, numbers: Sequence[str], groups: Sequence[int]) -> str:
        """Query for the rows of the first ``MOST`` tensors that differ in each group, within one step."""
        columns = "".join(f", s.{quoted(op)}" for op in numbers)
        listed = ", ".join(map(str, groups))
        place = "vpp_stage, name, micro_step, call, part"
        numbered = (
            f"SELECT *, row_number() OVER (PARTITION BY replicas ORDER BY {place}) AS place "  # noqa: S608 - our own words
            f"FROM ({self._alike(signal, view, numbers)}) WHERE differs AND replicas IN ({listed})"
        )
        return (
            f"SELECT s.replicas, s.vpp_stage, s.name, s.micro_step, s.call, s.part, s.rank{columns} "  # noqa: S608
            f"FROM ({self._source(view, numbers)}) AS s JOIN ({numbered}) AS n ON s.replicas = n.replicas "
            "AND s.vpp_stage IS NOT DISTINCT FROM n.vpp_stage AND s.name = n.name AND s.micro_step = n.micro_step "
            f"AND s.call = n.call AND s.part = n.part WHERE n.place <= {MOST} ORDER BY s.replicas, n.place, s.rank"
        )


KEYS = ", ".join(KEY)
PROVED = "proved_replicas"
PLACE = {name: "VARCHAR" if name == NAME else "INTEGER" for name in KEY if name != STEP} | {"part": "VARCHAR"}
"""Columns by which the tensors of a signal differ, with their SQL types."""
_NOTHING = {"INTEGER": "0", "VARCHAR": "''"}
_FIRST_STEPS = f"SELECT DISTINCT step FROM {{}} WHERE step IS NOT NULL ORDER BY step LIMIT {CHANGES + 1}"  # noqa: S608


def compare(
    passes: Passes, topology: Topology, steps: Sequence[int] = ()
) -> tuple[list[Located], list[tuple[int, ...]]]:
    """Findings about tensors that differ between replicas, and groups of ranks that turn out to be no replicas.

    Args:
        steps: those to look at; all if empty.
    """
    rows, groups = passes.rows, topology.replica_groups()
    numbers = {signal: names for signal in rows.signals if replicated(signal) and (names := _numbers(rows, signal))}
    if not groups or not numbers:
        return [], []
    comparison = ReplicaComparison(tuple(groups), numbers, topology.has_experts, tuple(steps))
    aliens: list[int] = []
    if not topology.says_replicas:
        comparison, aliens = _proved(comparison, rows)
    compared: Compared = {}
    for piece in passes.over_steps(comparison, signals=tuple(numbers)):
        for place, part in piece.items():
            compared[place] = compared[place].merged(part) if place in compared else part
    comparison.fill(rows)
    by_signal = {signal: _begun(compared, signal) for signal in numbers}
    differences = {signal: comparison.differences(rows, signal, begun) for signal, begun in by_signal.items() if begun}
    located = [
        finding
        for group in range(len(groups))
        for signal in numbers
        for difference in differences.get(signal, {}).get(group, ())
        for finding in _findings(difference, topology)
    ]
    return located, [groups[group] for group in aliens]


def _numbers(rows: Rows, signal: str) -> tuple[str, ...]:
    sizes = tuple(op for op in rows.numbers(signal) if op in SIZES)
    return sizes or tuple(op for op in rows.numbers(signal) if op in OPS and op != "id")


def _proved(comparison: ReplicaComparison, rows: Rows) -> tuple[ReplicaComparison, list[int]]:
    """Return the comparison of the tensors that have proved to be copies, and the numbers of the groups most of whose
    tensors differ from the first step on."""
    comparison.fill(rows)
    first = replace(comparison, wanted=())
    proved = {signal: tuple(first.prove(rows, signal)) for signal in comparison.numbers}
    aliens = {group for signal in comparison.numbers for group in first.aliens(rows, signal)}
    return replace(comparison, proved=proved), sorted(aliens)


def _begun(compared: Compared, signal: str) -> dict[int, SignalComparison]:
    """Groups in which tensors of a signal differ."""
    return {group: comparison for (of, group), comparison in compared.items() if of == signal and comparison.step >= 0}


def _differ(ops: Sequence[str]) -> str:
    """Condition that the values of a group differ by more than rounding. A tensor with NaN or Inf on any rank is left
    out with all its numbers, since other rules report it: where a weight has become NaN, none of its elements is zero
    any more. NaN is the largest number to DuckDB."""
    finite = " AND ".join(f"coalesce(isfinite(min({op})) AND isfinite(max({op})), true)" for op in ops)
    sizes = ((f"max({op}) - min({op})", f"greatest(abs(max({op})), abs(min({op})))") for op in ops)
    apart = " OR ".join(f"{apart} > {TOLERANCE} * {size}" for apart, size in sizes)
    return f"{finite} AND ({apart})" if ops else "false"


def _split(rows: Mapping[int, Mapping[str, float]]) -> Split | None:
    """Disagreement in the numbers that all ranks have, else in one that some ranks lack, among the others."""
    if split := odd_ones(rows, TOLERANCE):
        return split
    every = dict.fromkeys(op for row in rows.values() for op in row)
    parts = ({rank: {op: row[op]} for rank, row in rows.items() if op in row} for op in every)
    return next((split for part in parts if (split := odd_ones(part, TOLERANCE))), None)


def _findings(difference: Difference, topology: Topology) -> Iterator[Located]:
    """Findings for each rank that differs from the majority; for all ranks if there is none."""
    split = _split(difference.rows)
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
