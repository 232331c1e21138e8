"""Losses of a graph, with the form of their scores and the relation of their labels to the tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from probe.core.checks.loss_calls import PRIME, Form, LossCall, Relation, is_crossed, traced
from probe.pytorch.loss_graphs import inputs
from probe.pytorch.loss_graphs.nodes import (
    KEEPS,
    MANY,
    MOST_LABELS,
    PRODUCTS,
    Graph,
    Lookup,
    behind,
    kind_of,
    saved_tensor,
    shape_of,
    signed,
)
from probe.pytorch.loss_graphs.roots import KINDS, MOST_TERMS
from probe.pytorch.loss_graphs.tokens import padding_of

MOST_LOSSES = 8
MISSED = 0.1
"""Share of labels that may be others where they are the next tokens: at the ends of texts that are packed."""
DIRECTED = frozenset({"BinaryCrossEntropy", "BinaryCrossEntropyWithLogits"})
"""Losses of which scores and labels cannot be exchanged."""
BY_HAND = {"Pow": "mse_loss", "Mul": "mse_loss", "Abs": "l1_loss"}
"""Losses that a program writes itself, by the node that reads a difference and is averaged."""
DISTANCES = frozenset({"MseLoss", "SmoothL1Loss", "HuberLoss"})
ARITHMETIC = KEEPS | {"Add", "Sub", "Mul", "Div"}
MOST_CLASSES = 32
"""Classes of a loss whose weights are compared with the number of their labels."""
ORDER: tuple[Relation, ...] = ("next", "other", "same", "second")
"""Relations of labels to tokens: of those that hold by chance, too, the one that is meant comes first."""


class Pair(NamedTuple):
    """Labels of a loss beside the tokens of a lookup: positions among the numbers."""

    missed: Sequence[int]
    """Labels that are not the token 0, 1 and 2 places later."""
    labels: int
    padded: int

    def relation(self, numbers: Sequence[float]) -> tuple[Relation, float] | None:
        """Return the relation of the labels to the tokens, with the share of padding that follows on padding; None if
        there is none."""
        labels = numbers[self.labels]
        same, following, second = (numbers[missed] for missed in self.missed)
        padded = numbers[self.padded] / max(labels, 1.0)
        if following <= MISSED * labels:  # neighbours are mostly equal, unless labels differ from their own tokens
            return "next" if same > max(MISSED * labels, 2 * following) else "other", padded
        if same and second:
            return None
        return "second" if same else "same", padded


class LabelNumbers(NamedTuple):
    """Numbers of the labels of a loss, by their positions; -1 and empty where there are none."""

    pairs: Sequence[Pair]
    digest: int
    """Digest of the labels."""
    weights: Sequence[tuple[int, int]]
    """Weight of each class and the number of its labels."""
    ignored: int
    """Number of the labels that are ignored."""
    ends: Sequence[int]
    """Least and greatest label, and how often a label is less than the one before."""

    def counted(self, call: LossCall, numbers: Sequence[float]) -> LossCall:
        """Return a loss with what its numbers say of its labels."""
        labels = int(numbers[self.digest]) if self.digest >= 0 else call.labels
        weights = tuple((numbers[weight], numbers[count]) for weight, count in self.weights)
        call = call._replace(labels=labels, ignored=numbers[self.ignored] / call.rows, weights=weights)
        if self.ends:
            least, most, falls = (numbers[end] for end in self.ends)
            call = call._replace(spread=math.inf if falls else most - least)
        relations: dict[Relation, float] = {}
        for relation, padded in filter(None, (pair.relation(numbers) for pair in self.pairs)):
            relations[relation] = max(padded, relations.get(relation, 0.0))
        meant = next((relation for relation in ORDER if relation in relations), None)
        return call if meant is None else call._replace(relation=meant, padded=relations[meant])


class Losses:
    """Losses that the nodes of a graph compute, in the order of the nodes."""

    def __init__(self, graph: Graph) -> None:
        self.in_order: Callable[[], bool] = inputs.in_order
        """Function that returns whether the loader whose batches are taken now reads its samples in their order."""
        self.samples = set[int]()
        """Numbers of samples that losses compare, one label or row of numbers each."""
        self._losses = [loss for kind, node in graph.kinds for loss in self._of_node(graph, kind, node)][:MOST_LOSSES]

    def read(self, numbers: Sequence[float]) -> tuple[LossCall, ...]:
        """Return the losses with what the numbers say of their labels."""
        return tuple(labels.counted(call, numbers) if labels else call for call, labels in self._losses)

    def _of_node(self, graph: Graph, kind: str, node: Any) -> Iterator[tuple[LossCall, LabelNumbers | None]]:
        """Yield the loss that a node computes."""
        if kind in KINDS:
            labels, scores = saved_tensor(node, "target"), saved_tensor(node, "self")
            if labels is None or scores is None or not labels.numel():
                return
            if scores.dim() <= 2:
                self.samples.add(int(scores.shape[0]))
            if KINDS[kind] == "nll_loss":
                yield self._likelihood(graph, node, labels, scores)
            else:
                crossed = 0 in _expanded(scores, labels) and 0 in _expanded(labels, scores)
                of_scores, of_labels = (follower is not None for follower, _ in node.next_functions[:2])
                call = traced(KINDS[kind], _form(node), labels.numel())
                exchanged = kind in DIRECTED and of_labels and not of_scores
                yield call._replace(broadcast=crossed, exchanged=exchanged), None
        elif kind == "Softmax" and kind_of(behind(node)) == "Softmax":
            result = saved_tensor(node, "result")
            if result is not None and result.numel():
                yield traced("softmax", "probabilities", result.numel(), int(result.shape[-1])), None
        elif kind in ("Mean", "Sum") and shape_of(node) == ():
            before = behind(node)
            name = kind_of(before)
            alike = name != "Mul" or len({*before.next_functions}) == 1
            if name in BY_HAND and alike and kind_of(difference := behind(before)) in ("Sub", "Rsub"):
                call = traced(BY_HAND[name], "numbers", math.prod(shape_of(difference)))
                operands = [shape_of(*edge) for edge in difference.next_functions if edge[0] is not None]
                yield call._replace(broadcast=is_crossed(shape_of(difference), operands)), None

    def _likelihood(
        self, graph: Graph, node: Any, labels: torch.Tensor, scores: torch.Tensor
    ) -> tuple[LossCall, LabelNumbers]:
        """Return the negative log likelihood that a node computes, or the cross entropy whose second half it is."""
        function, form = KINDS["NllLoss"], _form(node)
        if form == "log-probabilities" and kind_of(before := behind(node)) == "LogSoftmax":
            if _is_over_samples(before, scores):
                form = "numbers"
            else:
                function, form = "cross_entropy", _form(before)
        ignored = labels == signed(node._saved_ignore_index)
        pairs = [pair for lookup in graph.lookups for pair in _pairs(graph, labels, ignored, lookup)]
        is_flat = labels.dim() == 1 and labels.numel() >= MANY
        ends = [*labels.aminmax(), (labels[1:] < labels[:-1]).sum()] if is_flat else []
        if ends and labels.is_cpu and self.in_order is inputs.in_order:  # the loader may be gone when this is judged
            sorted_class = not ends[2] and ends[1] - ends[0] <= 1
            self.in_order = partial(bool, sorted_class and inputs.in_order())
        want = graph.want
        digest = want(_digest(labels)) if labels.numel() >= MANY else -1
        weights = [*_weights(graph, node, labels, ignored)]
        call = traced(function, form, labels.numel(), int(scores.shape[1 if scores.dim() > 1 else 0]))
        return call, LabelNumbers(pairs, digest, weights, want(ignored.sum()), [*map(want, ends)])


def has_moving_goal(graph: Graph) -> bool:
    """Return whether a distance has a gradient on both sides, as Q learning does not have: it compares scores that were
    chosen with a goal of the best scores, or values with rewards and a part of what the same layer returns."""
    return any(kind in DISTANCES and _has_moving_goal(graph, node) for kind, node in graph.kinds)


def _has_moving_goal(graph: Graph, node: Any) -> bool:
    if len(node.next_functions) < 2:
        return False
    (scores, _), (goal, _) = node.next_functions[:2]
    if scores is None or goal is None:
        return False
    kinds = set[str]()
    for _ in range(MOST_TERMS):
        if kind_of(goal) not in ARITHMETIC:
            break
        if any(follower is None for follower, _ in goal.next_functions):
            kinds.add(kind_of(goal))
        goal = behind(goal)
    if kind_of(goal) in ("Max", "Amax"):
        return "Gather" in (kind_of(scores), kind_of(behind(scores)))
    is_return = "Add" in kinds and "Mul" in kinds and kind_of(goal) in PRODUCTS
    return is_return and kind_of(scores) == kind_of(goal) and graph.place(goal) == graph.place(scores) != ""


def _weights(graph: Graph, node: Any, labels: torch.Tensor, ignored: torch.Tensor) -> Iterator[tuple[int, int]]:
    """Yield the weight of each class, and how many of the first labels are of it."""
    weight = saved_tensor(node, "weight")
    if weight is not None and weight.numel() <= MOST_CLASSES:
        few = labels.masked_fill(ignored, -1).flatten()[:MOST_LABELS]
        for number, of_class in enumerate(weight):
            yield graph.want(of_class), graph.want((few == number).sum())


def _pairs(graph: Graph, labels: torch.Tensor, ignored: torch.Tensor, lookup: Lookup) -> Iterator[Pair]:
    """Yield the labels of a loss beside tokens, by rows or by columns, if their numbers fit."""
    tokens, padding, _ = lookup
    if labels.device != tokens.device:
        return
    want = graph.want
    for axis in (1, 0):
        rows = tokens.movedim(axis, 1)
        count, length = rows.shape
        for cut in (0, 1, 2):
            size = length - cut
            if size < 3 or labels.numel() != count * size:
                continue
            shape = (count, size) if axis else (size, count)
            of_rows, hidden = (x.reshape(shape).movedim(axis, 1) for x in (labels, ignored))
            missed = []
            for places in (0, 1, 2):
                end = min(size, length - places)
                differs = of_rows[:, :end] != rows[:, places : places + end]
                missed.append(want((differs & ~hidden[:, :end]).sum()))
            is_pad = of_rows == (padding if padding >= 0 else rows[:, :size])
            pads = is_pad & ~hidden if padding >= 0 else is_pad & ~hidden & padding_of(rows, padding)[:, :size]
            both = want((pads[:, 1:] & pads[:, :-1]).sum())
            yield Pair(missed, want((~hidden).sum()), both)
            break


def _digest(labels: torch.Tensor) -> torch.Tensor:
    """Return a number below that of the primes, which float32 holds exactly, for labels in their order."""
    few = labels.flatten()[:MOST_LABELS]
    return ((few + 1) * torch.arange(1, len(few) + 1, device=few.device)).sum() % PRIME


def _is_over_samples(softmax: Any, scores: torch.Tensor) -> bool:
    """Return whether logarithms of probabilities are normalized over another axis than the classes of a loss."""
    result = saved_tensor(softmax, "result")
    if result is None or result.dim() < 2 or scores.dim() < 2:
        return False
    axis = signed(softmax._saved_dim) % result.dim()
    return axis != 1 if result.shape == scores.shape else result.shape[axis] != scores.shape[1]


def _form(node: Any) -> Form:
    """Return the form of what a loss gets, by what has computed it."""
    before = behind(node)
    kind = kind_of(before)
    if kind == "Softmax":
        return "probabilities"
    if kind == "Sigmoid":
        return "sigmoid"
    if kind == "Relu":
        return "rectified"
    if kind == "NativeDropout" or (kind == "Mul" and inputs.noise(saved_tensor(before, "other")) is not None):
        return "dropped"
    return "numbers" if kind in PRODUCTS else "log-probabilities"


def _expanded(tensor: torch.Tensor, partner: torch.Tensor) -> list[int]:
    """Return the strides of ``tensor`` along axes of several numbers where that of ``partner`` is not 0."""
    if tensor.shape != partner.shape:
        return []
    pairs = zip(tensor.shape, tensor.stride(), partner.stride(), strict=True)
    return [stride for size, stride, partner_stride in pairs if size > 1 and partner_stride]
