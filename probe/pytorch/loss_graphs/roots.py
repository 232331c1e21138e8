"""Root of the graph of a loss: the losses of the framework of which it is made, its sign, and what is added to them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from probe.pytorch.loss_graphs.nodes import (
    KEEPS,
    Graph,
    behind,
    kind_of,
    saved_tensor,
    scale_of,
    shape_of,
    signed,
)

KINDS = {
    "NllLoss": "nll_loss",
    "NllLoss2D": "nll_loss",
    "BinaryCrossEntropyWithLogits": "binary_cross_entropy_with_logits",
    "BinaryCrossEntropy": "binary_cross_entropy",
    "MseLoss": "mse_loss",
    "SmoothL1Loss": "smooth_l1_loss",
    "HuberLoss": "huber_loss",
}
"""Losses, by the kind of their node."""
TERMS = {
    "NllLoss": ("nll_loss_forward", ("weight",)),
    "NllLoss2D": ("nll_loss2d_forward", ("weight",)),
    "MseLoss": ("mse_loss", ()),
    "BinaryCrossEntropyWithLogits": ("binary_cross_entropy_with_logits", ("weight", "pos_weight")),
}
"""Losses that can be computed again from what their nodes have saved: the function, and its optional tensors."""
MOST_TERMS = 16


def negated(root: Any) -> str:
    """Return the name of the mean loss whose negative, perhaps with a factor, is a root; empty if there is none."""
    while kind_of(root) in ("Mul", "Div") and sum(follower is not None for follower, _ in root.next_functions) == 1:
        root = behind(root)
    before = behind(root)
    is_negative = kind_of(root) == "Neg" and (kind := kind_of(before)) in KINDS and shape_of(before) == ()
    return KINDS[kind] if is_negative else ""


def factor(root: Any) -> float:
    """Return the factor by which a root is a mean loss of the framework; NaN if it is something else."""
    product = 1.0
    while (scale := scale_of(root)) is not None or kind_of(root) in KEEPS:
        if scale is not None:
            product *= float(scale) if scale.is_cpu else math.nan
        root = behind(root)
    return product if kind_of(root) in KINDS and root._saved_reduction == 1 else math.nan


def constant(graph: Graph) -> Callable[[Sequence[float]], tuple[float, float]]:
    """Return a function of the numbers that returns the part of the root without a gradient, and the root; 0 in both if
    that is not known."""
    rest = _remainder(graph.root, graph.nodes[0])
    positions = [graph.want(rest), graph.want(graph.root)] if rest is not None else []
    return lambda numbers: (numbers[positions[0]], numbers[positions[1]]) if positions else (0.0, 0.0)


def _remainder(root: torch.Tensor, node: Any) -> torch.Tensor | None:
    """Return what a root has beside the losses of the framework whose sum it is; None if nothing was added to these, or
    if any of them cannot be computed again."""
    waiting: list[tuple[Any, Any]] = [(node, 1.0)]
    losses, is_more = list[tuple[Any, Any]](), False
    for _ in range(MOST_TERMS):
        if not waiting:
            break
        node, weight = waiting.pop()
        if (kind := kind_of(node)) in ("Add", "Sub") and len(node.next_functions) == 2:
            second = node._saved_alpha if kind == "Add" else -node._saved_alpha
            terms = [*zip(node.next_functions, (1.0, second), strict=True)]
            is_more |= any(follower is None for (follower, _), _ in terms)
            waiting += [(follower, weight * sign) for (follower, _), sign in terms if follower is not None]
        elif kind in TERMS:
            losses.append((node, weight))
        elif kind in KEEPS or (scale := scale_of(node)) is not None:
            waiting.append((node.next_functions[0][0], weight if kind in KEEPS else weight * scale))
        else:
            return None
    if waiting or not is_more or root.dtype not in (torch.float32, torch.float64):
        return None
    values = [_value(node) for node, _ in losses]
    if any(value is None for value in values):
        return None
    return root - sum(weight * value for (_, weight), value in zip(losses, values, strict=True))


def _value(node: Any) -> torch.Tensor | None:
    """Return the loss that a node has computed, computed again; None if that cannot be."""
    function, options = TERMS[kind_of(node)]
    scores, labels = saved_tensor(node, "self"), saved_tensor(node, "target")
    if scores is None or labels is None or not node._saved_reduction:
        return None
    ends = (signed(node._saved_ignore_index),) if function.startswith("nll") else ()
    more = [saved_tensor(node, option) for option in options]
    value = getattr(torch.ops.aten, function)(scores, labels, *more, node._saved_reduction, *ends)
    return value[0] if ends else value
