"""Gradients of a module's inputs *through that module*, other branches left out, as a full backward hook reports them.

The graph does not change: hooks are placed on the nodes that consume the input inside the module. See decision 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.autograd import Variable
from torch.autograd.graph import Node, get_gradient_edge

from probe.core.backend.input_gradient import EdgeSum
from probe.core.backend.protocols import Guard, OutOfReach
from probe.pytorch import compiled
from probe.pytorch.dtensor import add
from probe.pytorch.modes import unseen


class Inputs(NamedTuple):
    """Edges along which gradients of a module's inputs will arrive."""

    edges: list[tuple[Node, int] | None]
    began: int
    """Sequence number of the graph when the module began."""


def watch_inputs(tensors: Sequence[torch.Tensor]) -> Inputs | None:
    """Return, before the forward, the edges of ``tensors``; None if none of them takes part in differentiation.

    Raises:
        OutOfReach: inside a compiled graph, which has no node for a module.
    """
    if (call := compiled.running()) is not None:
        if rows := call.needing(tensors):
            raise OutOfReach(rows)
        return None
    edges = [edge_of(tensor) if tensor.requires_grad else None for tensor in tensors]
    return Inputs(edges, torch._C._autograd._get_sequence_nr()) if any(edges) else None


def edge_of(tensor: torch.Tensor) -> tuple[Node, int]:
    """Return the edge of the graph along which the gradient of ``tensor`` arrives."""
    if tensor.grad_fn is not None:
        return tensor.grad_fn, tensor.output_nr
    with unseen():
        edge = get_gradient_edge(tensor)
    return edge.node, edge.output_nr


def on_input_gradients(
    inputs: Inputs, outputs: Sequence[torch.Tensor], listeners: Sequence[Callable[[torch.Tensor], None]], guard: Guard
) -> None:
    """Listen to the gradient of each watched input through the graph that leads from it to ``outputs``."""
    targets: dict[tuple[Node, int], list[Callable[[torch.Tensor], None]]] = {}
    for edge, listen in zip(inputs.edges, listeners, strict=True):
        if edge is not None:
            targets.setdefault(edge, []).append(listen)
    consumers: dict[tuple[Node, int], list[tuple[Node, int]]] = {}
    for node, index, edge in _consumers(inputs, outputs, targets):
        consumers.setdefault(edge, []).append((node, index))
    for edge, places in consumers.items():
        if len(places) == 1:
            (node, index), listening = places[0], targets[edge]
            node.register_hook(guard(partial(_pass_only_gradient, index, listening)))
            continue
        at_end = Variable._execution_engine.queue_callback
        total = EdgeSum(len(places), targets[edge], guard, add=_add, at_end=at_end)
        for node, index in places:
            node.register_hook(guard(lambda grads, _, index=index, total=total: total.add(grads[index])))
    for tensor in outputs:  # an input that is returned unchanged has no node of its own
        if tensor.requires_grad and (place := edge_of(tensor)) in targets and place not in consumers:
            for listen in targets[place]:
                tensor.register_hook(some(guard(listen)))


def _pass_only_gradient(index: int, listeners: Sequence[Callable[[torch.Tensor], None]], grads: Any, _: Any) -> None:
    """Listen to the gradient along the only edge; None if no gradient flows there."""
    if (gradient := grads[index]) is not None:
        for listen in listeners:
            listen(gradient)


def some(listen: Callable[[torch.Tensor], None]) -> Callable[[torch.Tensor | None], None]:
    """Return ``listen`` as a hook of a tensor, which torch calls with None if no gradient flows to one of several
    outputs of a node (2.13)."""
    return partial(_pass_gradient, listen)


def _pass_gradient(listen: Callable[[torch.Tensor], None], gradient: torch.Tensor | None) -> None:
    if gradient is not None:
        listen(gradient)


def _consumers(
    inputs: Inputs, outputs: Sequence[torch.Tensor], targets: Any
) -> Iterator[tuple[Node, int, tuple[Node, int]]]:
    """Yield nodes made since the module began whose gradients flow into a watched input."""
    waiting = [tensor.grad_fn for tensor in outputs if tensor.grad_fn is not None]
    seen: set[Node] = set()
    while waiting:
        node = waiting.pop()
        if node in seen or node._sequence_nr() < inputs.began:
            continue
        seen.add(node)
        for index, (source, number) in enumerate(node.next_functions):
            if source is None:
                continue
            if (source, number) in targets:
                yield node, index, (source, number)
            else:
                waiting.append(source)


def _add(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    with unseen():
        return add(one, other)
