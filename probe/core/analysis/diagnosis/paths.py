"""Paths of data from one finding to another, by the relation of their ranks and their positions in the program."""

from __future__ import annotations

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
