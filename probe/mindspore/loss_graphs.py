"""Facts of the graph of a loss in PyNative mode, before its backward: which operation uses each parameter, and the
losses with the form of their scores. Nodes show their kind, and shape and dtype of their results, from MindSpore 2.9
on; not the numbers that they keep, so that labels are taken where a cell of ``nn`` computes a loss.
"""

from __future__ import annotations

import functools
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple
from weakref import WeakValueDictionary, ref

import numpy as np

from probe.core.backend.pytree import leaves
from probe.core.checks.beginning import Beginning
from probe.core.checks.loss_calls import PRIME, Form, LossCall, LossGraph, Regrouped, exchanges, is_crossed, traced
from probe.core.checks.parameter_use import ParameterUse
from probe.mindspore import autograd, tensors
from probe.mindspore.data_sets import in_order

SECONDS = 0.05
MOST_LOSSES, MANY, MOST_LABELS = 8, 8, 1 << 14
"""Losses of a graph, labels that are not one class by chance, and labels that are counted."""
FUNCTIONS = {
    "CrossEntropyLoss": "cross_entropy",
    "SoftmaxCrossEntropyWithLogits": "cross_entropy",
    "NLLLoss": "nll_loss",
    "BCEWithLogitsLoss": "binary_cross_entropy_with_logits",
    "BCELoss": "binary_cross_entropy",
    "MSELoss": "mse_loss",
    "L1Loss": "l1_loss",
    "SmoothL1Loss": "smooth_l1_loss",
    "HuberLoss": "huber_loss",
}
"""Losses, by the class of their cell."""
KINDS = {
    "SparseSoftmaxCrossEntropyWithLogits": "cross_entropy",
    "BCEWithLogitsLoss": "binary_cross_entropy_with_logits",
    "BinaryCrossEntropy": "binary_cross_entropy",
}
"""Losses of which a program calls the function, by the kind of their node."""
SCORES: dict[str, Form] = {
    "Softmax": "probabilities",
    "Sigmoid": "sigmoid",
    "ReLU": "rectified",
    "Dropout": "dropped",
    "LogSoftmax": "log-probabilities",
    "LogSoftmaxExt": "log-probabilities",
}
"""Form of what a node returns, by its kind; any numbers of others."""
KEEPS = frozenset({"Reshape", "View", "Contiguous", "Squeeze", "ExpandDims", "Cast"})
"""Kinds of nodes that change no number."""
COPIES = KEEPS | {"Transpose", "TransposeExtView", "StridedSlice", "Permute"}
"""Kinds of nodes behind which a parameter is still that parameter."""
SCALES = frozenset({"Muls", "Divs"})
"""Kinds of nodes that multiply by a number."""
MEANS = frozenset({"MeanExt", "ReduceMean", "Mean", "SumExt", "ReduceSum"})
DISTANCES = {"Pow": "mse_loss", "Square": "mse_loss", "Mul": "mse_loss", "Abs": "l1_loss"}
"""Losses that a program writes itself, by the node that reads a difference."""
DIFFERENCES = frozenset({"SubExt", "Sub"})

PARAMETERS: WeakValueDictionary[int, Any] = WeakValueDictionary()
"""Parameters of watched models, by identity: nodes do not refer to them."""


class _Call(NamedTuple):
    """Call of a loss that is a cell, between its forward and the backward."""

    function: str
    reduction: str
    ignore_index: int | None
    scores: int
    """Identity of the node that has computed the scores; so of the others, -1 of what was given."""
    labels: int
    result: int
    shape: tuple[int, ...]
    values: Callable[[], Any]
    """Function that returns the labels: many only as long as something else keeps them."""


_calls: deque[_Call] = deque(maxlen=MOST_LOSSES)
"""Losses that were computed since the last backward, in any thread."""


def called(cell: Any, arguments: tuple[Any, ...], result: Any) -> None:
    """Note a call of a loss of MindSpore in a forward that is differentiated."""
    function = FUNCTIONS.get(type(cell).__name__)
    if (
        not type(cell).__module__.startswith("mindspore.")
        or function is None
        or len(arguments) < 2
        or not autograd.HAS_IDENTITIES
        or not autograd.differentiates()
    ):
        return
    scores, labels = arguments[:2]
    if not all(map(tensors.is_tensor, given := (scores, labels, result))):
        return
    values = (lambda: labels) if labels.size <= MOST_LABELS else ref(labels)
    makers = [-1 if (node := value._grad_node) is None or node.is_leaf() else _identity(value) for value in given]
    reduction, ignored = str(getattr(cell, "reduction", "")), getattr(cell, "ignore_index", None)
    _calls.append(_Call(function, reduction, ignored, makers[0], makers[1], makers[2], tuple(scores.shape), values))


def _identity(tensor: Any) -> int:
    return -1 if (node := tensor._grad_node) is None else int(node._unique_id())


def forget() -> None:
    """Forget the calls of losses whose backward has run."""
    _calls.clear()


def spoilt_input(given: object) -> Beginning | None:
    """Return labels of a loss that are not finite as the beginning of such numbers, else tensors in ``given``; None if
    all are finite, or are not in host memory."""
    labels = ((call.function, call.values()) for call in _calls.copy())
    for name, value in (*labels, *(("", value) for value in leaves(given))):
        if tensors.is_tensor(value) and tensors.on_host(value):
            numbers = tensors.numbers(value)
            if numbers.dtype.kind == "f" and not np.isfinite(numbers).all():
                return Beginning("input", name, "", "", "nan" if np.isnan(numbers).any() else "inf")
    return None


class _Node(NamedTuple):
    """Node of a graph."""

    kind: str
    order: int
    shape: tuple[int, ...]
    dtype: str
    inputs: tuple[int, ...]
    """Identities of the nodes that have computed what it reads, in their order; -1 of what has no gradient."""


def _nodes(root: Any) -> dict[int, _Node]:
    """Return the nodes of the graph of ``root`` by identity, that of the root first; none if the time is over before
    its end, or the graph is not visible."""
    if not autograd.HAS_IDENTITIES or root._grad_node is None:
        return {}
    deadline, nodes, waiting = time.perf_counter() + SECONDS, dict[int, _Node](), [root._grad_node]
    while waiting:
        if time.perf_counter() > deadline:
            return {}
        if (identity := int((node := waiting.pop())._unique_id())) in nodes:
            continue
        followers = [follower for follower, _ in node.next_functions]
        results = () if node.is_leaf() else node._input_metadata
        shape, dtype = (tuple(results[0].shape), str(results[0].dtype)) if results else ((0,), "")
        inputs = tuple(-1 if follower is None else int(follower._unique_id()) for follower in followers)
        nodes[identity] = _Node(node.name(), -1 if node.is_leaf() else node._sequence_nr(), shape, dtype, inputs)
        waiting += [follower for follower in followers if follower is not None]
    return nodes


def uses(root: Any, names: Mapping[int, str]) -> dict[str, ParameterUse]:
    """Return the operation that used each parameter last, in the graph of a loss whose backward has not begun: see
    :meth:`probe.core.backend.protocols.TrainingLoop.uses`."""
    nodes, by_name = _nodes(root), dict[str, ParameterUse]()
    if not nodes:
        return by_name
    known = {_identity(thing): (names[key], thing.ndim) for key in names if (thing := PARAMETERS.get(key)) is not None}
    known.pop(-1, None)  # of those that no operation has read yet
    for node in nodes.values():
        for identity in node.inputs:
            name, dimensions = known.get(_leaf(nodes, identity), ("", 0))
            if name and (name not in by_name or by_name[name].order < node.order) and node.kind not in COPIES:
                by_name[name] = ParameterUse(node.order, node.dtype, dimensions)
    return by_name


def _leaf(nodes: Mapping[int, _Node], identity: int) -> int:
    """Return the identity of what a node is a mere copy of."""
    while (node := nodes.get(identity)) is not None and node.kind in COPIES:
        identity = node.inputs[0]
    return identity


def loss_graph(root: Any, names: Mapping[int, str]) -> Callable[[], LossGraph] | None:  # noqa: ARG001
    """Return a function that returns the facts of the graph of ``root``, a loss whose backward has not begun; None if
    it is not visible, or the time is over before its end."""
    nodes = _nodes(root)
    if not nodes:
        return None
    calls = [call for call in _calls.copy() if call.scores in nodes or call.labels in nodes]
    losses = tuple(_of_cell(nodes, call) for call in calls) or tuple(islice(_by_hand(nodes), MOST_LOSSES))
    means = {call.result: call.function for call in calls if call.reduction == "mean"}
    start = _past(nodes, next(iter(nodes)), KEEPS)
    factor = 1.0 if start in means else math.nan
    start = _past(nodes, start, SCALES)
    is_negative = start in nodes and nodes[start].kind == "Neg"
    negated = means.get(_behind(nodes, start), "") if is_negative else ""
    regrouped = next(_regrouped(nodes), None)
    return functools.partial(LossGraph, losses, regrouped=regrouped, negated=negated, in_order=in_order, factor=factor)


def _past(nodes: Mapping[int, _Node], identity: int, kinds: frozenset[str]) -> int:
    """Return the identity of a node, or of the first before it that is of none of ``kinds``."""
    while (node := nodes.get(identity)) is not None and node.kind in kinds:
        identity = node.inputs[0]
    return identity


def _behind(nodes: Mapping[int, _Node], identity: int) -> int:
    """Return the identity of the node that has computed what a node reads first and changes numbers; -1 if none has."""
    inputs = nodes[identity].inputs if identity in nodes else ()
    return _past(nodes, next((node for node in inputs if node in nodes), -1), KEEPS)


def _form(nodes: Mapping[int, _Node], identity: int) -> Form:
    node = nodes.get(_past(nodes, identity, KEEPS))
    return "numbers" if node is None else SCORES.get(node.kind, "numbers")


def _of_cell(nodes: Mapping[int, _Node], call: _Call) -> LossCall:
    """Return a loss that a cell has computed, with what is known of its labels."""
    labels = call.values()
    is_on_host = labels is not None and tensors.on_host(labels)
    numbers = tensors.numbers(labels).reshape(-1) if is_on_host else np.zeros(0)
    is_class = numbers.dtype.kind in "iu" and call.function in ("cross_entropy", "nll_loss")
    classes = call.shape[1 if len(call.shape) > 1 else 0] if call.function in ("cross_entropy", "nll_loss") else 0
    shape = call.shape if labels is None else tuple(labels.shape)
    pairs = () if classes else _broadcast(call.shape, shape)
    return LossCall(
        0,
        call.function,
        call.reduction,
        _form(nodes, call.scores),
        classes,
        math.prod(shape),
        float((numbers == call.ignore_index).mean()) if is_class and numbers.size else 0.0,
        math.nan,
        "other",
        _digest(numbers) if is_class else 0,
        math.prod(pairs) > max(math.prod(call.shape), math.prod(shape)),
        _spread(numbers) if is_class and len(shape) == 1 else math.inf,
        exchanged=call.function.startswith("binary") and call.scores < 0 <= call.labels,
    )


def _broadcast(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    try:
        return np.broadcast_shapes(one, other)
    except ValueError:  # the loss takes them in a way of its own
        return ()


def _digest(labels: Any) -> int:
    """Return a number for labels in their order; 0 of few."""
    few = labels[:MOST_LABELS].astype(np.int64) + 1
    return int((few * np.arange(1, len(few) + 1)).sum() % PRIME) if len(few) >= MANY else 0


def _spread(labels: Any) -> float:
    """Return the greatest label less the least of labels that are sorted; Inf of others, and of few."""
    is_sorted = len(labels) >= MANY and bool((labels[1:] >= labels[:-1]).all())
    return float(labels[-1]) - float(labels[0]) if is_sorted else math.inf


def _by_hand(nodes: Mapping[int, _Node]) -> Iterator[LossCall]:
    """Yield the losses of functions, and those that a program writes itself."""
    for identity, node in nodes.items():
        first = nodes.get(before := _behind(nodes, identity))
        if first is None:
            continue
        if node.kind in KINDS:
            classes = int(first.shape[-1]) if KINDS[node.kind] == "cross_entropy" and first.shape else 0
            yield traced(KINDS[node.kind], _form(nodes, before), math.prod(first.shape), classes)
        elif node.kind == "GatherD" and (scores := _normalised(nodes, before)) >= 0:
            classes = int(first.shape[-1]) if first.shape else 0
            yield traced("cross_entropy", _form(nodes, scores), math.prod(node.shape), classes)
        elif node.kind in MEANS and node.shape == () and first.kind in DISTANCES:
            inside = nodes.get(_behind(nodes, before))
            is_distance = first.kind != "Mul" or len({*first.inputs}) == 1
            if inside is not None and inside.kind in DIFFERENCES and is_distance:
                call = traced(DISTANCES[first.kind], "numbers", math.prod(inside.shape))
                computed = (nodes[operand] for operand in inside.inputs if operand in nodes)
                shapes = [operand.shape for operand in computed if operand.order >= 0]  # arguments are leaves
                yield call._replace(broadcast=is_crossed(inside.shape, shapes))


def _normalised(nodes: Mapping[int, _Node], identity: int) -> int:
    """Return the identity of the scores of which a node is the logarithm of a softmax; -1 if it is none. MindSpore's
    cross entropy subtracts the logarithm of the sum of the exponentials."""
    node = nodes[identity]
    if node.kind in ("LogSoftmax", "LogSoftmaxExt"):
        return node.inputs[0]
    if node.kind not in DIFFERENCES or len(node.inputs) < 2 or node.inputs[1] not in nodes:
        return -1
    kinds = {nodes[operand].kind for operand in nodes[node.inputs[1]].inputs if operand in nodes}
    return node.inputs[0] if "Log" in kinds else -1


def _regrouped(nodes: Mapping[int, _Node]) -> Iterator[Regrouped]:
    """Yield the views that exchange axes, but those of slices and padding."""
    for node in nodes.values():
        before = nodes.get(node.inputs[0]) if node.kind in ("Reshape", "View") else None
        if before is None or before.shape == (0,) or before.kind in ("StridedSlice", "Concat", "PadV3"):
            continue
        if exchanges(before.shape, node.shape):
            yield Regrouped(before.shape, node.shape, "")
