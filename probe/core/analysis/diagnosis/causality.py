"""Incidents: their findings classed as causes, consequences and effects of the end of the run."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial

from probe.core.analysis.diagnosis.evaluate import EvaluatedRank
from probe.core.analysis.diagnosis.located_finding import EXCHANGE, Located
from probe.core.analysis.diagnosis.nodes import Carried, CausalPaths, Nodes
from probe.core.analysis.diagnosis.passes import Passes
from probe.core.moments import OPS
from probe.core.rules.comm_nan import AnomalyCommNan
from probe.core.storage.duckdb_reader import Rows
from probe.core.storage.layout import group_of
from probe.core.storage.sql import quoted


class Cause(str, Enum):
    """Class of a finding within its incident."""

    initiating = "initiating"
    """No earlier finding can have caused it."""
    cascade = "cascade"
    """An earlier finding can have caused it: data can have passed from there to here."""
    teardown = "teardown"
    """The end of the run explains it: a rank was lost, or a step was left unfinished."""


@dataclass
class Incident:
    """Findings of all ranks that may be connected, in order."""

    findings: list[tuple[Located, Cause]] = field(default_factory=list)
    first: int = 0
    last: int = 0
    number: int = 0
    """Number of all findings, including those that are not kept."""
    by_rank: dict[int, int] = field(default_factory=dict)
    by_rule: dict[str, int] = field(default_factory=dict)

    def of(self, cause: Cause) -> list[Located]:
        """Findings of one class, in order."""
        return [located for located, own_cause in self.findings if own_cause is cause]

    @property
    def is_non_finite(self) -> bool:
        return any(located.is_non_finite for located, _ in self.findings)


def incidents_of(judged: Sequence[EvaluatedRank], paths: CausalPaths, live: Iterable[Located] = ()) -> list[Incident]:
    """Incidents that the episodes of all ranks make up, in order of time, each with its findings classed."""
    incidents = _incidents(judged)
    for located in live:
        _add(incidents, located)
    ends = _Ends(judged)
    for incident in incidents:
        _class(incident, paths, ends)
    return incidents


def _incidents(judged: Sequence[EvaluatedRank]) -> list[Incident]:
    """Episodes of all ranks; those that overlap in one incident."""
    episodes = sorted(
        ((episode, rank.rank) for rank in judged for episode in rank.episodes), key=lambda pair: pair[0].first
    )
    incidents: list[Incident] = []
    until = -1
    for episode, rank in episodes:
        if not incidents or episode.first > until:
            incidents.append(Incident(first=episode.first, last=episode.last))
            until = -1
        incident, until = incidents[-1], max(until, episode.until)
        incident.last = max(incident.last, episode.last)
        incident.number += episode.number
        incident.by_rank[rank] = incident.by_rank.get(rank, 0) + episode.number
        for rule, number in episode.by_rule.items():
            incident.by_rule[rule] = incident.by_rule.get(rule, 0) + number
        incident.findings += [(located, Cause.initiating) for located in episode.kept]
    return incidents


def _add(incidents: list[Incident], located: Located) -> None:
    """Add a finding to the incident of its step, or make it a new one."""
    step, finding = located.began, located.finding
    after = bisect_right(incidents, step, key=lambda other_incident: other_incident.first)  # they do not overlap
    incident = incidents[after - 1] if after else None
    if incident is None or step > incident.last:
        incident = Incident(first=step, last=step)
        incidents.insert(after, incident)
    incident.findings.append((located, Cause.initiating))
    incident.number += 1
    incident.by_rank[finding.rank] = incident.by_rank.get(finding.rank, 0) + 1
    incident.by_rule[finding.rule] = incident.by_rule.get(finding.rule, 0) + 1


def _class(incident: Incident, paths: CausalPaths, ends: _Ends) -> None:
    """Set the class of each finding, in causal order: later findings never change the class of an earlier one."""
    ordered = sorted((located for located, _ in incident.findings), key=lambda located: located.order)
    nodes, phases = Nodes(paths), dict[int, set[int]]()
    incident.findings = []
    for located in ordered:
        if ends.explain(located):
            incident.findings.append((located, Cause.teardown))
            continue
        phases_of_rank, phase = phases.setdefault(located.rank, set()), located.phase
        caused = bool(phases_of_rank) or nodes.explain(located)
        incident.findings.append((located, Cause.cascade if caused else Cause.initiating))
        if phase not in phases_of_rank:
            phases_of_rank.add(phase)
            nodes.add(located)


class _Ends:
    """Ends of the ranks' data."""

    def __init__(self, judged: Sequence[EvaluatedRank]) -> None:
        self._of = {rank.rank: rank for rank in judged}
        self._earliest = min((rank.last_step for rank in judged), default=-1)

    def explain(self, located: Located) -> bool:
        """Return whether the end of the run explains a finding: its rank left the last step unfinished, and the finding
        there is no NaN that the rank computed itself."""
        rank = self._of.get(located.rank)
        if rank is None or not rank.partial or located.finding.step != rank.last_step:
            return False
        if not located.is_non_finite:
            return True
        peer_was_lost = self._earliest < rank.last_step
        return peer_was_lost and located.phase >= EXCHANGE


Bad = dict[tuple[int, frozenset[int]], tuple[set[int] | None, set[int]]]
"""By step and group: ranks that sent NaN or Inf, None if no inputs were recorded, and ranks that received it."""


def exchanged(passes: Passes, steps: Collection[int]) -> dict[int, list[Carried]]:
    """By step, the senders and receivers in each group of ranks whose rows of communication hold NaN or Inf."""
    carried: dict[int, list[Carried]] = {}
    if not steps or not _condition(passes.rows):
        return carried
    sent: dict[tuple[int, frozenset[int]], set[int]] = {}
    received: dict[tuple[int, frozenset[int]], set[int]] = {}
    for by_place in passes.over_ranks(partial(_bad, steps=tuple(sorted(steps))), signals=("other",)):
        for place, (own_steps, others) in by_place.items():
            if own_steps is not None:
                sent.setdefault(place, set()).update(own_steps)
            if others:
                received.setdefault(place, set()).update(others)
    for (step, group), ranks in received.items():
        # if no inputs were recorded, any rank of the group may have sent it
        origins = sent.get((step, group), set(group))
        carried.setdefault(step, []).append((frozenset(origins), frozenset(ranks)))
    return carried


def _bad(rows: Rows, steps: Sequence[int]) -> Bad:
    bad = _condition(rows)
    if not bad:
        return {}
    listed = ", ".join(map(str, steps))
    records = rows.connection.execute(
        f"SELECT DISTINCT step, rank, name, {bad} AS bad FROM {rows.view('other')} "  # noqa: S608 - our own words
        f"WHERE step IN ({listed}) AND ({bad} OR name LIKE '%.pre')"
    ).fetchall()
    result: Bad = {}
    for step, rank, name, is_bad in records:
        place = step, group_of(name)
        own_steps, others = result.get(place, (None, set()))
        if name.endswith(".pre"):
            own_steps = own_steps or set()
        if is_bad:
            (others if own_steps is None or not name.endswith(".pre") else own_steps).add(rank)
        result[place] = own_steps, others
    return result


def _condition(rows: Rows) -> str:
    """SQL that is true of rows with NaN or Inf; empty if no column shows it."""
    if "other" not in rows.signals:
        return ""
    ops = [op for op in rows.numbers("other") if op in OPS and op != "id"]
    counts = [f"coalesce({quoted(op)} > 0, false)" for op in ops if op in ("nans", "infs")]
    values = [f"NOT coalesce(isfinite({quoted(op)}), true)" for op in ops if op in ("norm", "sum", "mean")]
    # a minimum without elements is NaN and means nothing: a row of shape [0]
    return f"(coalesce(shape, '') NOT LIKE '[0%' AND ({' OR '.join([*counts, *values])}))" if counts or values else ""


def senders(findings: Iterable[Located]) -> Mapping[int, frozenset[int]]:
    """By step, the ranks that sent NaN or Inf without having received any, as ``AnomalyCommNan`` reported."""
    by_receiver: dict[int, set[int]] = {}
    for located in findings:
        if located.finding.rule == AnomalyCommNan.__name__:
            by_receiver.setdefault(located.began, set()).add(located.rank)
    return {step: frozenset(ranks) for step, ranks in by_receiver.items()}
