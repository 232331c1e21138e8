"""First findings of ranks, taken together where ranks are alike, so that a finding's cause is found without asking
every rank.

A node is a set of ranks that stand alike to others: those that name the same group, or are of the same stage. Of the
findings in a node, one for each phase, micro step and piece of the model is enough, because the earliest leads wherever
another one does. Where that is not so (gradients that replicas average), the findings are asked one by one, and the
first that leads there ends the search.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from probe.core.analysis.diagnosis.located_finding import (
    BACKWARD,
    EXCHANGE,
    FORWARD,
    REDUCED,
    STATE,
    WEIGHTS,
    Located,
    Position,
)
from probe.core.analysis.diagnosis.topology import Topology


class Relation(NamedTuple):
    """Relation of the rank of one finding to the rank of a later one."""

    connected: bool = False
    """Anything that the one computes reaches the other in the end."""
    replicas: bool = False
    """Both average their gradients with each other."""
    peers: bool = False
    """Both exchange activations within a forward."""
    pipeline: bool = False
    """Activations of the one can reach the other through pipeline stages."""
    shares: bool = False
    """The other holds a part of the tensor of the finding."""


class PathPoint(NamedTuple):
    """Position of a finding, without its rank: all that decides, with a relation, about its consequences."""

    began: int
    phase: int
    micro_step: int | None
    chunk: tuple[int, int]
    position: Position
    accumulates: bool
    """True if further micro steps of its training step follow."""
    of_gradient: bool
    """True for a weight's gradient before it is reduced."""

    @classmethod
    def of(cls, located: Located) -> PathPoint:
        """Position of ``located``."""
        micro_step = located.micro_step
        return cls(
            located.began,
            located.phase,
            micro_step,
            located.chunk,
            located.position,
            micro_step is not None and micro_step + 1 < located.micro_steps,
            located.finding.signal == "grad_unreduced",
        )


def leads(one: PathPoint, other: PathPoint, relation: Relation) -> bool:
    """Return whether data can pass from ``one`` to ``other``, which comes later in order, on another rank.

    Collectives that carried NaN are apart: :class:`probe.core.analysis.diagnosis.nodes.Nodes` asks of them.
    """
    if one.began < other.began:
        return _later(one, other, relation)
    return one.began == other.began and _within(one, other, relation)


def _later(one: PathPoint, other: PathPoint, relation: Relation) -> bool:
    """Test across a step boundary: after an update a bad gradient has reached every replica; a bad weight or state
    stays on its rank until the next forward."""
    if not relation.connected:
        return False
    if one.phase < REDUCED or other.phase >= REDUCED:
        return True
    return _from_weights(one, other, relation)


def _within(one: PathPoint, other: PathPoint, relation: Relation) -> bool:
    """Test within a step."""
    if one.phase == WEIGHTS:
        return other.phase != WEIGHTS and _from_weights(one, other, relation)
    if one.phase in (FORWARD, BACKWARD):
        return _from_micro_step(one, other, relation)
    return one.phase == EXCHANGE and other.phase >= REDUCED and relation.connected


def _from_weights(one: PathPoint, other: PathPoint, relation: Relation) -> bool:
    """Test from a bad weight: through its rank's forward and backward, or where ranks gather it to compute."""
    if relation.shares:
        return True
    if other.phase in (WEIGHTS, STATE):
        return False
    return _forward(one, other, relation) if other.phase == FORWARD else _backward(one, other, relation)


def _from_micro_step(one: PathPoint, other: PathPoint, relation: Relation) -> bool:
    if other.micro_step is not None and one.micro_step is not None and one.micro_step != other.micro_step:
        return False
    if other.phase == FORWARD:
        return one.phase == FORWARD and _forward(one, other, relation)
    return _backward(one, other, relation)


def _forward(one: PathPoint, other: PathPoint, relation: Relation) -> bool:
    if relation.peers and one.position < other.position:
        return True
    return relation.pipeline and one.chunk < other.chunk


def _backward(one: PathPoint, other: PathPoint, relation: Relation) -> bool:
    """Test to a gradient: down the pipeline at once, to replicas when gradients are averaged."""
    if other.phase >= REDUCED:
        return other.phase != STATE and relation.connected
    if other.phase == EXCHANGE:
        return False
    if other.of_gradient and relation.replicas:
        # gradients averaged after each micro batch accumulate: a later sum holds the contributions of others
        return one.accumulates and (other.micro_step is None or other.micro_step > (one.micro_step or 0))
    if relation.peers and one.position < other.position:
        return True
    return relation.pipeline and (one.phase <= FORWARD or one.chunk > other.chunk)


Carried = tuple[frozenset[int], frozenset[int]]
"""Ranks that sent NaN or Inf, and ranks that received it."""

CONNECTED = Relation(connected=True)
REPLICAS = Relation(connected=True, replicas=True)
PEERS = Relation(connected=True, peers=True)
PIPELINE = Relation(connected=True, pipeline=True)
SHARES = Relation(connected=True, shares=True)

_Alike = tuple[object, ...]


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
        exchanged: Mapping[int, Collection[Carried]] | None = None,
        origins: Mapping[int, frozenset[int]] | None = None,
    ) -> None:
        self.topology = topology
        self._exchanged, self._origins = exchanged or {}, origins or {}
        self._collectives: dict[int, CarriedByRank] = {}

    def __call__(self, one: Located, other: Located) -> bool:
        """Return whether data can pass from ``one`` to ``other``, which comes later in order."""
        if one.rank == other.rank:
            return True
        if one.began == other.began and self._by_collective(one, other):
            return True
        return leads(PathPoint.of(one), PathPoint.of(other), self._relation(one, other.rank))

    def _relation(self, one: Located, other: int) -> Relation:
        t, rank = self.topology, one.rank
        return Relation(
            t.are_connected(rank, other),
            t.are_replicas(rank, other),
            t.are_peers(rank, other),
            t.are_in_one_pipeline(rank, other),
            other in one.ranks,
        )

    def _by_collective(self, one: Located, other: Located) -> bool:
        """Test through a collective that carried NaN or Inf, from a rank that was earlier in the same program."""
        if not any(
            one.rank in sent and other.rank in received for sent, received in self._exchanged.get(one.began, ())
        ):
            return False
        origins = self.origins(one.began)
        if origins and (one.rank in origins) != (other.rank in origins):
            return one.rank in origins
        return one.position < other.position

    def origins(self, step: int) -> frozenset[int]:
        """Ranks that the run itself reported as sending NaN without having received any."""
        return self._origins.get(step, frozenset())

    def collectives(self, step: int) -> CarriedByRank:
        """Collectives of a step that carried NaN or Inf, by rank."""
        if step not in self._collectives:
            numbers = CarriedByRank({}, {})
            for number, carried in enumerate(self._exchanged.get(step, ())):
                for by_rank, ranks in zip(numbers, carried, strict=True):
                    for rank in ranks:
                        by_rank.setdefault(rank, []).append(number)
            self._collectives[step] = numbers
        return self._collectives[step]


class CarriedByRank(NamedTuple):
    """Numbers of collectives by the ranks that sent something bad in them, and by those that received it."""

    sent: dict[int, list[int]]
    received: dict[int, list[int]]


class Node:
    """Findings of ranks that stand alike to others."""

    def __init__(self) -> None:
        self._earliest: dict[_Alike, PathPoint] = {}
        self._all: dict[_Alike, list[Located]] = {}
        self._known: dict[tuple[PathPoint, Relation], bool] = {}

    def add(self, located: Located, point: PathPoint, keep: bool = True) -> None:
        """Add a finding.

        Args:
            keep: False if :meth:`leading` will not be called.
        """
        alike = point.phase, point.micro_step, point.accumulates, point.chunk
        earliest = self._earliest.get(alike)
        if earliest is None or point.position < earliest.position:
            self._earliest[alike] = point
            self._known.clear()
        if keep:
            self._all.setdefault(alike, []).append(located)

    def leads(self, other: PathPoint, relation: Relation) -> bool:
        """Return whether a finding leads to ``other``, on a rank to which all ranks here have ``relation``."""
        asked = other, relation
        if asked not in self._known:
            self._known[asked] = any(leads(point, other, relation) for point in self._earliest.values())
        return self._known[asked]

    def leading(self, other: PathPoint, relation: Relation) -> Iterator[Located]:
        """Findings that lead to ``other`` if the ranks have ``relation``."""
        for alike, point in self._earliest.items():
            if leads(point, other, relation):
                yield from self._all[alike]


_Nodes = dict[int, Node]


class Nodes:
    """Findings that may have caused later ones: the first of each rank and phase."""

    def __init__(self, paths: CausalPaths) -> None:
        self._paths, self._topology = paths, paths.topology
        self._replicas: _Nodes = {}
        """By number of the group; where it is not known by stage."""
        self._stages: _Nodes = {}
        self._peers: _Nodes = {}
        self._pipelines: _Nodes = {}
        self._piped: _Nodes = {}
        """Ranks of which the pipeline is not known, by stage."""
        self._reached: _Nodes = {}
        """By group of replicas: findings of ranks that are in the pipeline of a replica."""
        self._reached_stages: dict[int, dict[_Alike, dict[int, PathPoint]]] = {}
        """The same where replicas are not known: by stage, then by the peers of the rank in between."""
        self._spread: set[tuple[int, object]] = set()
        self._shards = _Shards()
        self._carried: dict[tuple[int, int, bool], Position] = {}
        """Earliest position by step, number of the collective, and whether the run named the rank as the origin."""

    def add(self, located: Located) -> None:
        """Add the first finding of a rank and phase; in causal order."""
        point, rank = PathPoint.of(located), located.rank
        numbers, stage = self._topology.numbers(rank), self._topology.stage(rank)
        for number, indexed, otherwise in (
            (numbers.replicas, self._replicas, self._stages),
            (numbers.pipeline, self._pipelines, self._piped),
        ):
            nodes, place = (indexed, number) if number else (otherwise, stage)
            nodes.setdefault(place, Node()).add(located, point)
        if numbers.peers:
            self._peers.setdefault(numbers.peers, Node()).add(located, point)
        self._add_reached(located, point)
        if located.ranks and (point.phase == WEIGHTS or point.phase >= REDUCED):
            self._shards.add(located, point)
        self._add_carried(located, point)

    def _add_reached(self, located: Located, point: PathPoint) -> None:
        alike = point.phase, point.micro_step
        for pipeline in self._topology.containing.pipeline.get(located.rank, ()):
            if (pipeline, alike) in self._spread:  # the one that came first leads wherever this one does
                continue
            self._spread.add((pipeline, alike))
            for rank in self._topology.naming(pipeline):
                numbers = self._topology.numbers(rank)
                if numbers.replicas:
                    self._reached.setdefault(numbers.replicas, Node()).add(located, point, keep=False)
                else:
                    of_stage = self._reached_stages.setdefault(self._topology.stage(rank), {})
                    of_stage.setdefault(alike, {}).setdefault(numbers.peers, point)

    def _add_carried(self, located: Located, point: PathPoint) -> None:
        for number in self._paths.collectives(point.began).sent.get(located.rank, ()):
            place = point.began, number, located.rank in self._paths.origins(point.began)
            self._carried[place] = min(self._carried.get(place, point.position), point.position)

    def explain(self, located: Located) -> bool:
        """Return whether a finding can have caused ``located``, the first of its rank, which comes later."""
        point, rank = PathPoint.of(located), located.rank
        return (
            self._in_replicas(located, point)
            or self._in_groups(located, point)
            or self._through_pipelines(rank, point)
            or any(self._paths(cause, located) for cause in self._shards.leading(rank, point))
            or self._in_collectives(rank, point)
        )

    def _in_replicas(self, located: Located, point: PathPoint) -> bool:
        nodes = (self._replicas.get(number) for number in self._topology.containing.replicas.get(located.rank, ()))
        if any(node.leads(point, REPLICAS) for node in nodes if node):
            return True
        node = self._stages.get(self._topology.stage(located.rank))
        if node is None:
            return False
        if not point.of_gradient:
            return node.leads(point, CONNECTED)
        return self._leads(node, located, point, REPLICAS)  # peers of the stage are no replicas

    def _in_groups(self, located: Located, point: PathPoint) -> bool:
        stage, containing = self._topology.stage(located.rank), self._topology.containing
        peers = (self._peers.get(number) for number in containing.peers.get(located.rank, ()))
        if any(self._leads(node, located, point, PEERS) for node in peers if node):
            return True
        pipelines = (self._pipelines.get(number) for number in containing.pipeline.get(located.rank, ()))
        if any(self._leads(node, located, point, PIPELINE) for node in pipelines if node):
            return True
        return any(self._leads(node, located, point, PIPELINE) for of, node in self._piped.items() if of != stage)

    def _leads(self, node: Node, located: Located, point: PathPoint, relation: Relation) -> bool:
        """Return whether a finding of ``node`` leads to ``located``; for a gradient that replicas average, its rank may
        be a replica besides."""
        if not node.leads(point, relation):
            return False
        if not point.of_gradient:
            return True
        return any(self._paths(cause, located) for cause in node.leading(point, relation))

    def _through_pipelines(self, rank: int, point: PathPoint) -> bool:
        containing = self._topology.containing
        nodes = (self._reached.get(number) for number in containing.replicas.get(rank, ()))
        if any(node.leads(point, CONNECTED) for node in nodes if node):
            return True
        peers = containing.peers.get(rank, ())
        for by_peers in self._reached_stages.get(self._topology.stage(rank), {}).values():
            first = next((cause for number, cause in by_peers.items() if number not in peers), None)  # in causal order
            if first is not None and leads(first, point, CONNECTED):
                return True
        return False

    def _in_collectives(self, rank: int, point: PathPoint) -> bool:
        for number in self._paths.collectives(point.began).received.get(rank, ()):
            of_origins = self._carried.get((point.began, number, True))
            others = self._carried.get((point.began, number, False))
            if rank in self._paths.origins(point.began):
                others = None
            elif of_origins is not None:
                return True
            if any(position is not None and position < point.position for position in (of_origins, others)):
                return True
        return False


class _Shards:
    """Findings about tensors of which several ranks hold a part."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[int, ...], Node] = {}
        self._by_rank: dict[int, list[Node]] = {}

    def add(self, located: Located, point: PathPoint) -> None:
        if located.ranks not in self._nodes:
            node = self._nodes[located.ranks] = Node()
            for rank in dict.fromkeys(located.ranks):
                self._by_rank.setdefault(rank, []).append(node)
        self._nodes[located.ranks].add(located, point)

    def leading(self, rank: int, point: PathPoint) -> Iterator[Located]:
        """Findings that lead to ``point`` if their ranks are connected with ``rank``."""
        for node in self._by_rank.get(rank, ()):
            if node.leads(point, SHARES):
                yield from node.leading(point, SHARES)
