"""Incidents: their findings classed as causes, consequences and effects of the end of the run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from probe.core.analysis.diagnosis.evaluate import EvaluatedRank
from probe.core.analysis.diagnosis.located_finding import BACKWARD, EXCHANGE, FORWARD, REDUCED, STATE, WEIGHTS, Located
from probe.core.analysis.diagnosis.topology import Topology
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
        return [located for located, own in self.findings if own is cause]

    @property
    def is_non_finite(self) -> bool:
        return any(located.is_non_finite for located, _ in self.findings)


class CausalPaths:
    """Test whether one finding can have caused another: by the paths of data, not by clocks.

    Args:
        exchanged: collectives that carried NaN or Inf, by step: the ranks of each group that sent it, and those that
            received it.
        origins: by step, the ranks that the run itself reported as sending NaN without having received any.
    """

    def __init__(
        self,
        topology: Topology,
        exchanged: Mapping[int, Collection[tuple[frozenset[int], frozenset[int]]]] | None = None,
        origins: Mapping[int, frozenset[int]] | None = None,
    ) -> None:
        self._topology = topology
        self._exchanged, self._origins = exchanged or {}, origins or {}

    def __call__(self, one: Located, other: Located) -> bool:
        """Return whether data can pass from ``one`` to ``other``, which comes later in order."""
        if one.rank == other.rank:
            return True
        if one.began < other.began:
            return self._later(one, other)
        return one.began == other.began and self._within(one, other)

    def _are_connected(self, one: int, other: int) -> bool:
        """Return whether anything that one rank computes reaches the other in the end."""
        t = self._topology
        return (
            t.are_replicas(one, other)
            or t.are_peers(one, other)
            or t.are_in_one_pipeline(one, other)
            or any(one in t.place(rank).pipeline and t.are_replicas(rank, other) for rank in t.ranks)
        )

    def _later(self, one: Located, other: Located) -> bool:
        """Test across a step boundary: after an update a bad gradient has reached every replica; a bad weight or state
        stays on its rank until the next forward."""
        if not self._are_connected(one.rank, other.rank):
            return False
        if one.phase < REDUCED or other.phase >= REDUCED:
            return True
        return self._from_weights(one, other)

    def _within(self, one: Located, other: Located) -> bool:
        """Test within a step."""
        if self._by_collective(one, other):
            return True
        if one.phase == WEIGHTS:
            return other.phase != WEIGHTS and self._from_weights(one, other)
        if one.phase in (FORWARD, BACKWARD):
            return self._from_micro_step(one, other)
        return one.phase == EXCHANGE and other.phase >= REDUCED and self._are_connected(one.rank, other.rank)

    def _from_weights(self, one: Located, other: Located) -> bool:
        """Test from a bad weight: through its rank's forward and backward, or where ranks gather it to compute."""
        if other.rank in one.ranks:
            return True
        if other.phase in (WEIGHTS, STATE):
            return False
        return self._forward(one, other) if other.phase == FORWARD else self._backward(one, other)

    def _from_micro_step(self, one: Located, other: Located) -> bool:
        if other.micro_step is not None and one.micro_step is not None and one.micro_step != other.micro_step:
            return False
        if other.phase == FORWARD:
            return one.phase == FORWARD and self._forward(one, other)
        return self._backward(one, other)

    def _forward(self, one: Located, other: Located) -> bool:
        t, ranks = self._topology, (one.rank, other.rank)
        if t.are_peers(*ranks) and one.position < other.position:
            return True
        return t.are_in_one_pipeline(*ranks) and one.chunk < other.chunk

    def _backward(self, one: Located, other: Located) -> bool:
        """Test to a gradient: down the pipeline at once, to replicas when gradients are averaged."""
        t, ranks = self._topology, (one.rank, other.rank)
        if other.phase >= REDUCED:
            return other.phase != STATE and self._are_connected(*ranks)
        if other.phase == EXCHANGE:
            return False
        if other.finding.signal == "grad_unreduced" and t.are_replicas(*ranks):
            # gradients averaged after each micro batch accumulate: a later sum holds the contributions of others
            earlier = one.micro_step is not None and one.micro_step + 1 < one.micro_steps
            return earlier and (other.micro_step is None or other.micro_step > (one.micro_step or 0))
        if t.are_peers(*ranks) and one.position < other.position:
            return True
        came_forward = one.phase <= FORWARD
        return t.are_in_one_pipeline(*ranks) and (came_forward or one.chunk > other.chunk)

    def _by_collective(self, one: Located, other: Located) -> bool:
        """Test through a collective that carried NaN or Inf, from a rank that was earlier in the same program."""
        origins = self._origins.get(one.began, frozenset())
        carried = self._exchanged.get(one.began, ())
        if not any(one.rank in sent and other.rank in received for sent, received in carried):
            return False
        if origins and (one.rank in origins) != (other.rank in origins):
            return one.rank in origins
        return one.position < other.position


def incidents_of(
    judged: Sequence[EvaluatedRank], can_cause: Callable[[Located, Located], bool], live: Iterable[Located] = ()
) -> list[Incident]:
    """Incidents that the episodes of all ranks make up, in order of time, each with its findings classed."""
    incidents = _incidents(judged)
    for located in live:
        _add(incidents, located)
    ends = _Ends(judged)
    for incident in incidents:
        _class(incident, can_cause, ends)
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
    incident = next((incident for incident in incidents if incident.first <= step <= incident.last), None)
    if incident is None:
        incident = Incident(first=step, last=step)
        incidents.append(incident)
        incidents.sort(key=lambda each: each.first)
    incident.findings.append((located, Cause.initiating))
    incident.number += 1
    incident.by_rank[finding.rank] = incident.by_rank.get(finding.rank, 0) + 1
    incident.by_rule[finding.rule] = incident.by_rule.get(finding.rule, 0) + 1


def _class(incident: Incident, can_cause: Callable[[Located, Located], bool], ends: _Ends) -> None:
    """Set the class of each finding, in causal order: later findings never change the class of an earlier one."""
    ordered = sorted((located for located, _ in incident.findings), key=lambda located: located.order)
    firsts: dict[int, dict[int, Located]] = {}
    incident.findings = []
    for located in ordered:
        own = firsts.get(located.rank)
        if ends.explain(located):
            incident.findings.append((located, Cause.teardown))
            continue
        caused = bool(own) or any(can_cause(first, located) for each in firsts.values() for first in each.values())
        incident.findings.append((located, Cause.cascade if caused else Cause.initiating))
        firsts.setdefault(located.rank, {}).setdefault(located.phase, located)


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


Carried = tuple[frozenset[int], frozenset[int]]
"""Ranks that sent NaN or Inf, and ranks that received it."""


def exchanged(rows: Rows, steps: Collection[int]) -> dict[int, list[Carried]]:
    """By step, the senders and receivers in each group of ranks whose rows of communication hold NaN or Inf."""
    bad = _condition(rows)
    if not bad or not steps:
        return {}
    listed = ", ".join(str(int(step)) for step in sorted(steps))
    found = rows.connection.execute(
        f"SELECT DISTINCT step, rank, name, {bad} AS bad FROM {rows.view('other')} "  # noqa: S608 - our own words
        f"WHERE step IN ({listed}) AND ({bad} OR name LIKE '%.pre')"
    ).fetchall()
    sent: dict[tuple[int, frozenset[int]], set[int]] = {}
    received: dict[tuple[int, frozenset[int]], set[int]] = {}
    for step, rank, name, is_bad in found:
        group = group_of(name)
        own = sent.setdefault((step, group), set()) if name.endswith(".pre") else None
        if is_bad:
            (received.setdefault((step, group), set()) if own is None else own).add(rank)
    carried: dict[int, list[Carried]] = {}
    for (step, group), ranks in received.items():
        # if no inputs were recorded, any rank of the group may have sent it
        origins = sent.get((step, group), set(group))
        carried.setdefault(step, []).append((frozenset(origins), frozenset(ranks)))
    return carried


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
    found: dict[int, set[int]] = {}
    for located in findings:
        if located.finding.rule == AnomalyCommNan.__name__:
            found.setdefault(located.began, set()).add(located.rank)
    return {step: frozenset(ranks) for step, ranks in found.items()}
