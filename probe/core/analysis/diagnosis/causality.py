"""What began it, what followed from it, and what only shows that the run was ending."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from probe.core.analysis.diagnosis.evaluate import Judged
from probe.core.analysis.diagnosis.located_finding import BACKWARD, EXCHANGE, FORWARD, REDUCED, STATE, WEIGHTS, Located
from probe.core.analysis.diagnosis.topology import Topology


class Cause(str, Enum):
    """What a finding is in its story."""

    initiating = "initiating"
    """Nothing that was found before can have caused it."""
    cascade = "cascade"
    """An earlier finding can have caused it: there is a way for data from there to here."""
    teardown = "teardown"
    """It comes from the end of the run: a rank was lost, or a step was left unfinished."""


@dataclass
class Story:
    """Findings that may have to do with each other, of all ranks, in order."""

    findings: list[tuple[Located, Cause]] = field(default_factory=list)
    first: int = 0
    last: int = 0
    number: int = 0
    """All findings, those that are not kept too."""
    by_rank: dict[int, int] = field(default_factory=dict)
    by_rule: dict[str, int] = field(default_factory=dict)

    def of(self, cause: Cause) -> list[Located]:
        """The findings of one class, in order."""
        return [located for located, own in self.findings if own is cause]

    @property
    def is_non_finite(self) -> bool:
        return any(located.is_non_finite for located, _ in self.findings)


class Reach:
    """Whether what one finding is about can have caused another: by data, not by clocks.

    Args:
        exchanged: the collectives in which something bad was seen, by step: the ranks of each group that gave it, and
            those that got it.
        origins: ranks of which the run itself said, by step, that they gave NaN without having got any.
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
        """Whether there is a way from ``one`` to ``other``, which comes later in order."""
        if one.rank == other.rank:
            return True
        if one.began < other.began:
            return self._later(one, other)
        return one.began == other.began and self._within(one, other)

    def _are_connected(self, one: int, other: int) -> bool:
        """Whether anything at all that one rank computes reaches the other in the end."""
        t = self._topology
        return (
            t.are_replicas(one, other)
            or t.are_peers(one, other)
            or t.are_in_one_pipeline(one, other)
            or any(one in t.place(rank).pipeline and t.are_replicas(rank, other) for rank in t.ranks)
        )

    def _later(self, one: Located, other: Located) -> bool:
        """Across a step boundary: after an update a bad gradient has reached every replica; a bad weight or state stays
        on its rank until the next forward."""
        if not self._are_connected(one.rank, other.rank):
            return False
        if one.phase < REDUCED or other.phase >= REDUCED:
            return True
        return self._from_weights(one, other)

    def _within(self, one: Located, other: Located) -> bool:
        """Within a step."""
        if self._by_collective(one, other):
            return True
        if one.phase == WEIGHTS:
            return other.phase != WEIGHTS and self._from_weights(one, other)
        if one.phase in (FORWARD, BACKWARD):
            return self._from_micro_step(one, other)
        return one.phase == EXCHANGE and other.phase >= REDUCED and self._are_connected(one.rank, other.rank)

    def _from_weights(self, one: Located, other: Located) -> bool:
        """From a bad weight: through its rank's forward and backward, or where ranks gather it to compute."""
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
        """To a gradient: down the pipeline at once, to replicas when gradients are averaged."""
        t, ranks = self._topology, (one.rank, other.rank)
        if other.phase >= REDUCED:
            return other.phase != STATE and self._are_connected(*ranks)
        if other.phase == EXCHANGE:
            return False
        if other.finding.signal == "grad_unreduced" and t.are_replicas(*ranks):
            # gradients that are averaged after each micro batch are added to: a later sum holds what others gave
            earlier = one.micro_step is not None and one.micro_step + 1 < one.micro_steps
            return earlier and (other.micro_step is None or other.micro_step > (one.micro_step or 0))
        if t.are_peers(*ranks) and one.position < other.position:
            return True
        came_forward = one.phase <= FORWARD
        return t.are_in_one_pipeline(*ranks) and (came_forward or one.chunk > other.chunk)

    def _by_collective(self, one: Located, other: Located) -> bool:
        """Through a collective that was seen to carry something bad, from who runs the same program and was earlier."""
        origins = self._origins.get(one.began, frozenset())
        carried = self._exchanged.get(one.began, ())
        if not any(one.rank in given and other.rank in got for given, got in carried):
            return False
        if origins and (one.rank in origins) != (other.rank in origins):
            return one.rank in origins
        return one.position < other.position


def tell(
    judged: Sequence[Judged], reach: Callable[[Located, Located], bool], live: Iterable[Located] = ()
) -> list[Story]:
    """The stories that the ranks' episodes make up, in order of time, each with its findings classed."""
    stories = _stories(judged)
    for located in live:
        _add(stories, located)
    ends = _Ends(judged)
    for story in stories:
        _class(story, reach, ends)
    return stories


def _stories(judged: Sequence[Judged]) -> list[Story]:
    """Episodes of all ranks, those together that overlap."""
    episodes = sorted(
        ((episode, rank.rank) for rank in judged for episode in rank.episodes), key=lambda pair: pair[0].first
    )
    stories: list[Story] = []
    until = -1
    for episode, rank in episodes:
        if not stories or episode.first > until:
            stories.append(Story(first=episode.first, last=episode.last))
            until = -1
        story, until = stories[-1], max(until, episode.until)
        story.last = max(story.last, episode.last)
        story.number += episode.number
        story.by_rank[rank] = story.by_rank.get(rank, 0) + episode.number
        for rule, number in episode.by_rule.items():
            story.by_rule[rule] = story.by_rule.get(rule, 0) + number
        story.findings += [(located, Cause.initiating) for located in episode.kept]
    return stories


def _add(stories: list[Story], located: Located) -> None:
    """Puts a finding into the story of its time, or makes it one."""
    step, finding = located.began, located.finding
    story = next((story for story in stories if story.first <= step <= story.last), None)
    if story is None:
        story = Story(first=step, last=step)
        stories.append(story)
        stories.sort(key=lambda each: each.first)
    story.findings.append((located, Cause.initiating))
    story.number += 1
    story.by_rank[finding.rank] = story.by_rank.get(finding.rank, 0) + 1
    story.by_rule[finding.rule] = story.by_rule.get(finding.rule, 0) + 1


def _class(story: Story, reach: Callable[[Located, Located], bool], ends: _Ends) -> None:
    """Gives each finding its class. One of an earlier step or place is never replaced by a later one."""
    ordered = sorted((located for located, _ in story.findings), key=lambda located: located.order)
    firsts: dict[int, dict[int, Located]] = {}
    story.findings = []
    for located in ordered:
        own = firsts.get(located.rank)
        if ends.explain(located):
            story.findings.append((located, Cause.teardown))
            continue
        caused = bool(own) or any(reach(first, located) for each in firsts.values() for first in each.values())
        story.findings.append((located, Cause.cascade if caused else Cause.initiating))
        firsts.setdefault(located.rank, {}).setdefault(located.phase, located)


class _Ends:
    """How the ranks' data end."""

    def __init__(self, judged: Sequence[Judged]) -> None:
        self._of = {rank.rank: rank for rank in judged}
        self._earliest = min((rank.last_step for rank in judged), default=-1)

    def explain(self, located: Located) -> bool:
        """Whether a finding comes from the run's end: the last step of a rank was left unfinished, and what was found
        there is no NaN of its own computing."""
        rank = self._of.get(located.rank)
        if rank is None or not rank.partial or located.finding.step != rank.last_step:
            return False
        if not located.is_non_finite:
            return True
        peer_was_lost = self._earliest < rank.last_step
        return peer_was_lost and located.phase >= EXCHANGE
