"""Gradient of a cell's input *through that cell*, without other branches, as a Cell backward hook receives it.

A Cell backward hook would put operators into the graph and, if an input is used several times, change the order in
which gradients are added. Hooks on the existing nodes change nothing.
"""

from __future__ import annotations

import functools
import logging
import operator
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from probe.core.backend.input_gradient import EdgeSum
from probe.core.backend.protocols import Guard, Listen
from probe.mindspore.autograd import HAS_IDENTITIES, at_end_of_backward
from probe.mindspore.cell_hooks import surfacing

Edge = tuple[int, int]
"""A node's identity and the number of its output."""

_log = logging.getLogger("probe")


class Inputs(NamedTuple):
    """Edges at which the gradients of a cell's inputs will arrive."""

    edges: list[Edge | None]
    nodes: list[Any]
    """Nodes of the inputs, kept alive: the identity of a freed node may be used again."""
    oldest: int
    """Sequence number of the oldest of these nodes: no earlier node uses any of them."""


def watch_inputs(tensors: Sequence[Any]) -> Inputs | None:
    """Return the nodes of the inputs, before the forward; None if no input takes part in differentiation."""
    if not HAS_IDENTITIES:
        _warn_once("gradients of inputs are not recorded: that needs MindSpore 2.9 or later")
        return None
    nodes = [tensor._grad_node for tensor in tensors]
    if all(node is None for node in nodes):
        return None
    edges = [None if node is None else edge_of(tensor) for node, tensor in zip(nodes, tensors, strict=True)]
    ages = [-1 if node.is_leaf() else node._sequence_nr() for node in nodes if node is not None]
    return Inputs(edges, nodes, min(ages))


def edge_of(tensor: Any) -> Edge:
    """Return the edge at which the gradient of ``tensor`` arrives."""
    return tensor._grad_node._unique_id(), tensor._output_index


def on_input_gradients(inputs: Inputs, outputs: Sequence[Any], listeners: Sequence[Listen], guard: Guard) -> None:
    """Listen to the gradient of each watched input through the graph that leads from it to ``outputs``."""
    wanted: dict[Edge, list[Listen]] = {}
    for edge, listen in zip(inputs.edges, listeners, strict=True):
        if edge is not None:
            wanted.setdefault(edge, []).append(listen)
    places: dict[Edge, list[tuple[Any, int]]] = {}
    for edge, node, index in _uses(wanted, outputs, inputs.oldest):
        places.setdefault(edge, []).append((node, index))
    for edge, uses in places.items():
        total = EdgeSum(len(uses), wanted[edge], guard, add=operator.add, at_end=at_end_of_backward)
        for node, index in uses:
            node.register_hook(
                surfacing(guard(lambda gradients, _, index=index, total=total: total.add(gradients[index])))
            )
    for tensor in outputs:
        if tensor._grad_node is not None and (own := edge_of(tensor)) in wanted and own not in places:
            for listen in wanted[own]:  # returned unchanged, without a node of its own
                tensor.register_hook(surfacing(guard(listen)))


def _uses(wanted: dict[Edge, list[Listen]], outputs: Sequence[Any], oldest: int) -> Iterator[tuple[Edge, Any, int]]:
    """Yield every wanted edge that ``outputs`` reach, with the node that it leaves and its number at that node."""
    open_ = [tensor._grad_node for tensor in outputs if tensor._grad_node is not None]
    visited: set[int] = set()
    while open_:
        node = open_.pop()
        identity = node._unique_id()
        if identity in visited or node.is_leaf() or node._sequence_nr() < oldest:
            continue
        visited.add(identity)
        for index, (source, number) in enumerate(node.next_functions):
            if source is None:
                continue
            edge = source._unique_id(), number
            if edge in wanted:
                yield edge, node, index
            else:
                open_.append(source)


@functools.cache
def _warn_once(sentence: str) -> None:
    _log.warning(sentence)
