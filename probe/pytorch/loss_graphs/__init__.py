"""Facts of the graph of a loss, before its backward: the losses with the form of their scores, the relation of their
labels to the tokens that embeddings have got, what attention reads, and views that exchange axes.

Labels and attention are compared where they lie, and one copy brings the counts to the host. Nothing of the user's
runs, and what has hooks is not unpacked (:mod:`probe.pytorch.saved_tensors`).
"""

from __future__ import annotations

import functools
import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch

from probe.core.checks.loss_calls import LossGraph
from probe.pytorch.dtensor import PLAIN
from probe.pytorch.loss_graphs import inputs, roots, tokens
from probe.pytorch.loss_graphs.losses import Losses, has_moving_goal
from probe.pytorch.loss_graphs.nodes import Graph, nodes_of
from probe.pytorch.modes import unseen

LOSS = re.compile("loss|aux|penalty|regular", re.IGNORECASE)
"""Names under which modules keep a loss of their own."""


def loss_graph(root: torch.Tensor, names: Mapping[int, str]) -> Callable[[], LossGraph] | None:
    """Return a function that waits for the facts of the graph of ``root``, a loss whose backward has not begun; None if
    the time is over before the end of the graph.

    Args:
        names: names of the parameters by identity.
    """
    with torch._C.DisableTorchFunction(), unseen(), torch.no_grad():
        nodes = nodes_of(root)
        return functools.cache(_facts(Graph(root, nodes, names))) if nodes else None


def kept_losses(models: Sequence[torch.nn.Module], root: torch.Tensor) -> dict[str, bool]:
    """Return the names under which modules keep losses of their own, scalars with a graph, each with whether ``root``
    is made of it. No code of the user's runs."""
    makers = {
        f"{path}.{name}".lstrip("."): value.grad_fn
        for model in models
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if type(value) in PLAIN and value.numel() == 1 and value.grad_fn is not None and LOSS.search(name)
    }
    nodes = {*nodes_of(root)} if makers else set()
    return {name: node in nodes for name, node in makers.items()} if nodes else {}


class _Life:
    """Thing that exists as long as a graph does."""


def life(root: torch.Tensor) -> list[Callable[[], object]]:
    """Return a function that returns something as long as the graph of ``root`` exists; nothing if none can."""
    with torch._C.DisableTorchFunction():
        metadata = getattr(root.grad_fn, "metadata", None)
    if metadata is None:
        return []
    metadata["probe"] = made = _Life()  # what a node keeps for anomaly detection, lives with it
    return [weakref.ref(made)]


def _facts(graph: Graph) -> Callable[[], LossGraph]:
    """Start the copy of the numbers of a graph; return a function that waits for them and returns the facts. It holds
    nothing of the graph, which the backward frees."""
    losses = Losses(graph)
    ahead, inverted, padding_read = tokens.ahead(graph), tokens.inverted(graph), tokens.padding_read(graph)
    one_row, constant, dropped = inputs.one_row(graph), roots.constant(graph), inputs.dropped(graph)
    pixels = inputs.pixels(graph)
    facts = partial(
        LossGraph,
        regrouped=tokens.regrouped(graph),
        crossing=tokens.crossing(graph, losses.samples),
        off_axis=tokens.off_axis(graph, losses.samples),
        negated=roots.negated(graph.nodes[0]),
        in_order=losses.in_order,
        factor=roots.factor(graph.nodes[0]),
        foreign=inputs.foreign(graph),
        moving_goal=has_moving_goal(graph),
        batch=inputs.batch(graph),
        tokens=bool(graph.lookups),
        one_sample=inputs.norm_of_one_sample(graph),
        size=sum(getattr(node, "variable", None) is None for node in graph.nodes),
        streams=bool(inputs.STREAMS),
    )
    wait = graph.send()

    def read() -> LossGraph:
        numbers = wait()
        least, most, is_causal = ahead(numbers)
        return facts(
            losses.read(numbers),
            least_ahead=least,
            most_ahead=most,
            any_causal=is_causal,
            inverted=inverted(numbers),
            one_row=one_row(numbers),
            constant=constant(numbers),
            dropped=dropped(numbers),
            pixels=pixels(numbers),
            padding_read=padding_read(numbers),
        )

    return read
