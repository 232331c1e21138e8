"""First causes as they were found before ranks were taken together: by all pairs of ranks.

The oracle of :mod:`tests.core.analysis.test_diagnosis_nodes`, kept as it was when it was replaced; only names of
classes differ.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from math import isinf, isnan

from probe.core.analysis.diagnosis.causality import Cause, Incident
from probe.core.analysis.diagnosis.evaluate import EvaluatedRank
from probe.core.analysis.diagnosis.evidence import Evidence
from probe.core.analysis.diagnosis.explain import HUGE, KINDS_OF_TENSOR, NEXT, Kind
from probe.core.analysis.diagnosis.located_finding import BACKWARD, EXCHANGE, FORWARD, REDUCED, STATE, WEIGHTS, Located
from probe.core.analysis.diagnosis.replicas import RULE as REPLICAS
from probe.core.analysis.diagnosis.topology import Place
from probe.core.naming import signal_of
from probe.core.records import Finding
from probe.core.rules import about
from probe.core.rules.evaluate import module_of
from probe.core.storage.layout import cell_name, ranks_text


class PairwiseTopology:
    """Groups of all ranks.

    Groups named by manifests are believed. If manifests name none, ranks of equal pipeline stage are taken for
    replicas, and each rank of a stage for a neighbour of each of the next.
    """

    def __init__(self, places: Iterable[Place]) -> None:
        self._places = {place.rank: place for place in places}

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted(self._places))

    def place(self, rank: int) -> Place:
        """Place of a rank; alone if nothing is known of it."""
        return self._places.get(rank, Place(rank))

    def stage(self, rank: int) -> int:
        """Pipeline stage of a rank."""
        return self.place(rank).stage

    def are_replicas(self, one: int, other: int) -> bool:
        """Return whether two ranks average their gradients."""
        known = self.place(one).replicas
        if known:
            return other in known
        return self.stage(one) == self.stage(other) and not self.are_peers(one, other)

    def are_peers(self, one: int, other: int) -> bool:
        """Return whether two ranks exchange activations within a forward."""
        return other in self.place(one).peers

    def are_in_one_pipeline(self, one: int, other: int) -> bool:
        """Return whether activations of one rank can reach the other."""
        known = self.place(one).pipeline
        return other in known if known else self.stage(one) != self.stage(other)

    def mates(self, rank: int) -> tuple[int, ...]:
        """Ranks of its pipeline, itself included; itself alone if none is known."""
        return self.place(rank).pipeline or (rank,)

    def replica_groups(self) -> list[tuple[int, ...]]:
        """Groups of two ranks or more that should hold parameters alike."""
        groups: dict[tuple[object, ...], set[int]] = {}
        for place in self._places.values():
            groups.setdefault(place.replicas or ("stage", place.stage), set()).add(place.rank)
        return [tuple(sorted(group)) for group in groups.values() if len(group) > 1]

    @property
    def says_replicas(self) -> bool:
        """True if manifests name the ranks that are replicas."""
        return any(place.replicas for place in self._places.values())


class PairwisePaths:
    """Test whether one finding can have caused another: by the paths of data, not by clocks.

    Args:
        exchanged: collectives that carried NaN or Inf, by step: the ranks of each group that sent it, and those that
            received it.
        origins: by step, the ranks that the run itself reported as sending NaN without having received any.
    """

    def __init__(
        self,
        topology: PairwiseTopology,
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
    ends = _PairwiseEnds(judged)
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


def _class(incident: Incident, can_cause: Callable[[Located, Located], bool], ends: _PairwiseEnds) -> None:
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


class _PairwiseEnds:
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


def kind_of(incident: Incident, first: Located, ranks: Sequence[int]) -> Kind:
    """Kind of an incident.

    Args:
        ranks: ranks on which it began.
    """
    finding = first.finding
    if not incident.of(Cause.initiating):
        return Kind.ending
    if _is_of_batch(incident, first, ranks):
        return Kind.bad_batch
    kind = about(finding.rule).kind
    if kind and (Kind[kind] is Kind.replica or not first.is_non_finite):
        return Kind[kind]
    if first.is_non_finite:
        return Kind.overflow if _has_infinity(incident, first) else Kind.nan
    return _leap(first)


def _leap(first: Located) -> Kind:
    """Kind of a finite value that is too large or too small."""
    finding = first.finding
    if not isnan(finding.expected) and abs(finding.value) < abs(finding.expected):
        return Kind.collapse
    if abs(finding.value) >= HUGE:
        return Kind.overflow
    return Kind.explosion if first.phase in (BACKWARD, REDUCED) else Kind.spike


def _is_of_batch(incident: Incident, first: Located, ranks: Sequence[int]) -> bool:
    """Return whether the first bad tensor, on one rank alone, is an input of the model, or a finite output of its first
    layer that was bad in this step only."""
    if first.phase != FORWARD or not about(first.finding.rule).judges_size or len(ranks) > 1 or first.chunk != (0, 0):
        return False
    forward = (located for located, _ in incident.findings if located.phase == FORWARD)
    is_over = all(located.began == first.began for located in forward) and not incident.is_non_finite
    return first.head and (first.finding.key.part.startswith("input") or is_over)


def _has_infinity(incident: Incident, first: Located) -> bool:
    """Return whether the row has Inf, perhaps together with NaN: then Inf came first."""
    same = (located.finding for located, _ in incident.findings if located.place == first.place)
    return any(finding.op == "infs" or isinf(finding.value) for finding in same)


def origins(incident: Incident) -> list[Located]:
    """Findings that began an incident: the first of each rank and place that no earlier finding explains."""
    found: dict[tuple[object, ...], Located] = {}
    for located in incident.of(Cause.initiating):
        found.setdefault((located.rank, located.place), located)
    return list(found.values())


def rivals(begun: Sequence[Located]) -> list[Located]:
    """Other findings that may have begun the incident: of the same step as the first of ``begun``, at another place."""
    first, found = begun[0], dict[tuple[object, ...], Located]()
    for located in begun[1:]:
        if located.began == first.began and located.place != first.place:
            found.setdefault(located.place, located)
    return list(found.values())


def where(located: Located, ranks: Sequence[int] = ()) -> str:
    """Text of module, row, rank, step and micro step."""
    finding = located.finding
    module = module_of(finding)
    micro = f", micro step {finding.key.micro_step}" if finding.micro_stepped else ""
    stage = f" (pipeline stage {located.pp_stage})" if located.pp_stage else ""
    chunk = f", virtual stage {finding.key.stage}" if finding.key.stage else ""
    on = on_ranks(ranks or [located.rank])
    in_module = f"module {module}" if module else "the root module"
    return (
        f"{cell_name(finding.key)} ({KINDS_OF_TENSOR[located.phase]}: {signal_of(finding.signal).meaning}) in "
        f"{in_module}, {on}{stage}, step {located.began}{micro}{chunk}"
    )


def on_ranks(ranks: Sequence[int]) -> str:
    """``rank 3`` or ``ranks 0-3``."""
    ordered = sorted(set(ranks))
    return f"rank{'s' * (len(ordered) > 1)} {ranks_text(ordered)}"


def value(finding: Finding) -> str:
    """Text of the value of a finding and of the value it was compared with."""
    against = f" (compared with {finding.expected:.6g})" if not isnan(finding.expected) else ""
    return f"{finding.op} {finding.value:.6g}{against}"


def paragraph(kind: Kind, incident: Incident, begun: Sequence[Located], shown: Evidence, facts: Sequence[str]) -> str:
    """Text of the diagnosis.

    Args:
        begun: findings that began it, as :func:`origins` returns them.
        facts: further sentences, such as one about the last clean step.
    """
    first = begun[0]
    ranks = [located.rank for located in begun if located.place == first.place]
    waited = f" at step {first.finding.step}, after several samples in a row" * (first.finding.step > first.began)
    sentences = [
        f"First cause: {kind.value}.",
        f"It began in {where(first, ranks)}: {value(first.finding)}, found by {first.finding.rule}{waited}.",
        *_ambiguity(begun, ranks),
        *(["The unfinished last step explains every finding."] if kind is Kind.ending else []),
        *_shown(shown),
        *facts,
        *_what_followed(incident, first),
        f"Look next at {NEXT.get(kind) or NEXT[first.phase]}.",
    ]
    return " ".join(sentences)


def _ambiguity(begun: Sequence[Located], ranks: Sequence[int]) -> Iterator[str]:
    if len(set(ranks)) > 1:
        yield (
            f"It appeared on {on_ranks(ranks)} in the same step, at the same place, so no rank received it from "
            "another: the cause is something that they share, or lies in a step between that was not sampled."
            if begun[0].finding.rule != REPLICAS
            else f"It is ambiguous which of {on_ranks(ranks)} is wrong: there is no majority."
        )
    others = rivals(begun)
    if others:
        named = "; ".join(f"{where(located)}: {value(located.finding)}" for located in others[:3])
        more = f"; and {len(others) - 3} more" if len(others) > 3 else ""
        yield f"This is ambiguous: no recorded data lead from it to, or come before, {named}{more}."


def _shown(shown: Evidence) -> Iterator[str]:
    if shown.values:
        numbers = ", ".join(f"{number:.6g} at step {step}" for step, number in shown.values)
        yield f"Evidence: {shown.op} in {shown.file}: {numbers}{f'; {shown.inputs}' if shown.inputs else ''}."
    elif shown.file == "":
        yield "Its row is not in the files."


def _what_followed(incident: Incident, first: Located) -> Iterator[str]:
    later = incident.of(Cause.cascade)
    if not later:
        yield "Nothing followed from it."
        return
    bad = next((located for located in later if located.is_non_finite), None)
    if bad is not None and not first.is_non_finite:
        yield f"It became NaN or Inf in {where(bad)}."
    others = sorted(set(incident.by_rank) - {first.rank})
    reached = f" and reached {on_ranks(others)}" if others else ""
    yield (
        f"It was followed by {incident.number - 1} finding{'s' * (incident.number > 2)} up to step {incident.last}"
        f"{reached}: first {where(later[0])}."
    )
