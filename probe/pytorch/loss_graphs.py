"""Facts of the graph of a loss, before its backward: the losses with the form of their scores, the relation of their
labels to the tokens that embeddings have got, what attention reads, and views that exchange axes.

Labels and attention are compared where they lie, and one copy brings the counts to the host. Nothing of the user's
runs, and what has hooks is not unpacked (:mod:`probe.pytorch.saved_tensors`).
"""

from __future__ import annotations

import functools
import math
import re
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.autograd.function import FunctionCtx
from torch.utils.data import DataLoader, Sampler, SequentialSampler
from torch.utils.data.dataloader import _BaseDataLoaderIter

from probe.core.backend.live_objects import instances
from probe.core.checks.loss_calls import KEPT, READ, Crossing, Form, LossCall, LossGraph, Regrouped, Relation, exchanges
from probe.pytorch import operation_kinds, tensors
from probe.pytorch.dtensor import PLAIN
from probe.pytorch.modes import unseen
from probe.pytorch.reached import reached
from probe.pytorch.saved_tensors import saved

SECONDS = 0.05
MOST_LOSSES, MOST_LOOKUPS, MOST_LAYERS = 8, 4, 8
MISSED = 0.1
"""Share of labels that may be others where they are the next tokens: at the ends of texts that are packed."""
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
DIRECTED = frozenset({"BinaryCrossEntropy", "BinaryCrossEntropyWithLogits"})
"""Losses of which scores and labels cannot be exchanged."""
BY_HAND = {"Pow": "mse_loss", "Mul": "mse_loss", "Abs": "l1_loss"}
"""Losses that a program writes itself, by the node that reads a difference and is averaged."""
KEEPS = frozenset({"View", "UnsafeView", "Reshape", "Squeeze", "Unsqueeze", "ToCopy", "Alias", "Clone"})
"""Kinds of nodes that change no number."""
VIEWS = frozenset({"View", "UnsafeView", "ReshapeAlias"})
"""Kinds of nodes that give numbers another shape, in their order."""
RECURRENT = frozenset({"MkldnnRnnLayer", "CudnnRnn"})
"""Kinds of nodes that are a whole layer of recurrence; what they get has the steps first (torch 2.13)."""
MOST_CLASSES, MOST_LABELS = 32, 1 << 14
"""Classes of a loss whose weights are compared with the number of their labels, and labels that are counted."""
PRIME = 16_777_213
"""Largest prime of 24 bits."""
CHANNELS, LIGHT, BYTE = 4, 100, 255
"""Channels of an image at most, and its lightest number: at least, and at most."""
MANY = 8
"""Labels of a batch that are not one class by chance."""
LARGE = 1 << 24
"""Number above all tokens that float32 holds exactly."""
HIDDEN = -1e4
"""Number of a mask that is added to scores, from which downwards it hides a position."""
BETWEEN = frozenset({"Expand", "NativeDropout", "Mul"})
"""Kinds of nodes between weights of attention and their product with values."""
TERMS = {
    "NllLoss": ("nll_loss_forward", ("weight",)),
    "NllLoss2D": ("nll_loss2d_forward", ("weight",)),
    "MseLoss": ("mse_loss", ()),
    "BinaryCrossEntropyWithLogits": ("binary_cross_entropy_with_logits", ("weight", "pos_weight")),
}
"""Losses that can be computed again from what their nodes have saved: the function, and its optional tensors."""
MOST_TERMS = 16
SHARE_PADDED = 0.1
"""Share of the tokens at least that are padding, where nothing says which token that is."""
DISTANCES = frozenset({"MseLoss", "SmoothL1Loss", "HuberLoss"})
ARITHMETIC = KEEPS | {"Add", "Sub", "Mul", "Div"}
FEWEST_DROPPED, MOST_DROPPED = 64, 4096
"""Numbers of a result of dropout by which its mask is known, least and most."""
FEWEST_ROWS = 8
"""Rows of a table at least that is no table of kinds."""
LOSS = re.compile("loss|aux|penalty|regular", re.IGNORECASE)
"""Names under which modules keep a loss of their own."""
PRODUCTS = frozenset({"Addmm", "Mm", "Bmm", "Baddbmm", "Linear", "Convolution"})
"""Kinds of nodes whose results are scores of any size."""


class _Pair(NamedTuple):
    """Labels of a loss beside the tokens of a lookup: numbers, as positions among those that are waited for."""

    missed: Sequence[int]
    """Labels that are not the token 0, 1 and 2 places later."""
    labels: int
    padded: int


class _Loss(NamedTuple):
    call: LossCall
    pairs: Sequence[_Pair]
    digest: int = -1
    """Digest of the labels, as a position among those that are waited for; -1 of few labels."""
    weighed: Sequence[tuple[int, int]] = ()
    """Weight of each class and the number of its labels, as positions among those that are waited for."""
    ignored: int = -1
    """Number of the labels that are ignored, as a position among those that are waited for; -1 if none can be."""
    ends: Sequence[int] = ()
    """Least and greatest label, and how often a label is less than the one before, as positions among those that are
    waited for."""


class _Mask(NamedTuple):
    """Tokens that attention reads, and those that it hides: positions among the numbers that are waited for."""

    least: int
    most: int
    hidden_least: int
    hidden_most: int
    number: int
    """Most tokens that are read of a sequence."""

    def hides_all_but_one(self, numbers: Sequence[float]) -> bool:
        """Return whether what is read is one and the same token, several times, and what is hidden is not."""
        least, most, hidden_least, hidden_most, number = numbers
        return least == most and hidden_least < hidden_most and number > 1


class _Numbers:
    """Single numbers that are read together."""

    def __init__(self) -> None:
        self._tensors: list[torch.Tensor] = []

    def add(self, tensor: torch.Tensor) -> int:
        """Add a tensor of one element; return its position."""
        self._tensors.append(tensor.float())
        return len(self._tensors) - 1

    def send(self) -> Callable[[], list[float]]:
        """Start the copy to the host; return a function that waits for it."""
        if not self._tensors:
            return list
        wait = tensors.to_host([tensors.moments(self._tensors, ("sum",), 0.0)])

        def numbers() -> list[float]:
            rows: list[float] = wait()[:, 0].tolist()
            return rows

        return numbers


def loss_graph(root: torch.Tensor, names: Mapping[int, str]) -> Callable[[], LossGraph] | None:
    """Return a function that waits for the facts of the graph of ``root``, a loss whose backward has not begun; None if
    the time is over before the end of the graph.

    Args:
        names: names of the parameters by identity.
    """
    with torch._C.DisableTorchFunction(), unseen(), torch.no_grad():
        nodes = _nodes(root)
        return None if not nodes else functools.cache(_Survey(root, nodes, names).send())


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
    nodes = {*_nodes(root)} if makers else set()
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


BEGUN: weakref.WeakValueDictionary[int, Sampler[Any]] = weakref.WeakValueDictionary()
"""Samplers of loaders that have begun to be read since something has listened, by identity."""

STREAMS: weakref.WeakSet[DataLoader[Any]] = weakref.WeakSet()
"""Loaders of iterable data sets with several workers that have begun to be read since something has listened."""


def in_order() -> bool:
    """Return whether all loaders of the program read their samples in their order."""
    loaders = (vars(thing) for thing in reached() if issubclass(type(thing), DataLoader))
    samplers = [getattr(loader.get("batch_sampler"), "sampler", loader.get("sampler")) for loader in loaders]
    samplers += BEGUN.values()
    if not samplers:  # the loader has no name, and has begun before the watch
        begun = map(vars, instances(_BaseDataLoaderIter))
        samplers = [getattr(part.get("_index_sampler"), "sampler", None) for part in begun]
    return bool(samplers) and all(type(sampler) is SequentialSampler for sampler in samplers)


def _nodes(root: torch.Tensor) -> list[Any]:
    """Return the nodes of the graph but those of custom functions; none if the time is over."""
    deadline = time.perf_counter() + SECONDS
    waiting = [root.grad_fn] if root.grad_fn is not None else []
    seen, nodes = {*waiting}, list[Any]()
    while waiting:
        if time.perf_counter() > deadline:
            return []
        node = waiting.pop()
        if not isinstance(node, FunctionCtx):
            nodes.append(node)
        for follower, _ in node.next_functions:
            if follower is not None and follower not in seen:
                seen.add(follower)
                waiting.append(follower)
    return nodes


class _Survey:
    """Facts of a graph, whose numbers may be on their way.

    Args:
        root: the loss.
        nodes: those of the graph.
        names: names of the parameters by identity.
    """

    def __init__(self, root: torch.Tensor, nodes: Sequence[Any], names: Mapping[int, str]) -> None:
        self._numbers, self._names = _Numbers(), names
        self._in_order: Callable[[], bool] = in_order
        self._samples = set[int]()
        """Numbers of samples that losses compare, one label or row of numbers each."""
        kinds = [(_kind(node), node) for node in nodes]
        lookups = [
            (indices, _signed(node._saved_padding_idx))
            for kind, node in kinds
            if kind == "Embedding" and (indices := _saved(node, "indices")) is not None and indices.dim() == 2
        ][:MOST_LOOKUPS]
        self._lookups = [(tokens, padding, self._numbers.add(_jumps(tokens))) for tokens, padding in lookups]
        self._losses = [loss for kind, node in kinds for loss in self._of_node(kind, node)][:MOST_LOSSES]
        self._ahead = [*self._reading(kinds)]
        self._regrouped = next(self._regrouping(kinds), None)
        self._crossing = self._crossed(kinds)
        self._off_axis = next(self._off_axes(kinds), None)
        self._root = _negated(nodes[0]), self._in_order, _factor(nodes[0])
        self._foreign = _foreign(nodes, names)
        self._moving = any(self._has_moving_goal(kind, node) for kind, node in kinds)
        self._batch = next((place for kind, node in kinds if (place := _batch(kind, node)) is not None), None)
        self._looked_up = [*self._tables(kinds)]
        rest = _remainder(root, nodes[0])
        mask = next((two for kind, node in kinds if (two := _dropout(kind, node)) is not None), None)
        self._extras = [
            [*map(self._numbers.add, some)] for some in ((rest, root) if rest is not None else (), mask or ())
        ]
        self._masks = [*self._masked(kinds)][:MOST_LAYERS]
        self._padded = [*self._padded_reads(kinds)]
        alone = (self._place(node) for kind, node in kinds if _is_of_one_sample(kind, node))
        self._one_sample, self._pixels = next(alone, None), [*self._images(kinds)][:1]
        self._size = sum(getattr(node, "variable", None) is None for node in nodes)

    def send(self) -> Callable[[], LossGraph]:
        """Start the copy of the numbers; return a function that waits for the facts."""
        wait, losses, lookups, ahead = self._numbers.send(), self._losses, self._lookups, self._ahead
        masks, shapes, of_root = self._masks, (self._regrouped, self._crossing), self._root
        foreign, off_axis, looked_up, extras = self._foreign, self._off_axis, self._looked_up, self._extras
        padded, batch, streams = self._padded, self._batch, bool(STREAMS)

        def read() -> LossGraph:
            numbers = wait()
            several = sum(numbers[jumps] > 0 for _, _, jumps in lookups) > 1
            read_ahead = [w if n < 0 else numbers[n] for n, w in ahead]
            weights = [math.nan] if several or not ahead else read_ahead
            any_causal = any(weight <= READ for weight in read_ahead)
            inverted = [place for mask, place in masks if mask.hides_all_but_one([numbers[n] for n in mask])]
            of_losses = tuple(_related(loss, numbers) for loss in losses)
            first = next(iter(inverted), None)
            one_row = tuple(place for least, most, place in looked_up if numbers[least] == numbers[most])
            rest, mask = ([numbers[n] for n in some] for some in extras)
            constant = (rest[0], rest[1]) if rest else (0.0, 0.0)
            dropped = (mask[0], mask[1]) if mask and mask[1] else None
            facts = (*shapes, first, off_axis, *of_root, any_causal, foreign, self._moving, one_row, constant, dropped)
            reads = (
                []
                if several
                else [(numbers[n] > READ, mean, place) for n, jumps, mean, place in padded if numbers[jumps]]
            )
            layers = [is_read for is_read, mean, _ in reads if not mean]
            wrong = [place for is_read, mean, place in reads if is_read and (mean or all(layers))]
            pixels = next((place for ends, place in self._pixels if _are_bytes(*(numbers[n] for n in ends))), None)
            of_data = batch, bool(lookups), self._one_sample, pixels, self._size, streams
            return LossGraph(of_losses, min(weights), max(weights), *facts, next(iter(wrong), None), *of_data)

        return read

    def _of_node(self, kind: str, node: Any) -> Iterator[_Loss]:
        """Yield the loss that a node computes."""
        if kind in KINDS:
            labels, scores = _saved(node, "target"), _saved(node, "self")
            if labels is None or scores is None or not labels.numel():
                return
            if scores.dim() <= 2:
                self._samples.add(int(scores.shape[0]))
            if KINDS[kind] == "nll_loss":
                yield self._likelihood(node, labels, scores)
            else:
                crossed = 0 in _expanded(scores, labels) and 0 in _expanded(labels, scores)
                of_scores, of_labels = (follower is not None for follower, _ in node.next_functions[:2])
                call = _call(KINDS[kind], _form(node), labels.numel())
                exchanged = kind in DIRECTED and of_labels and not of_scores
                yield _Loss(call._replace(broadcast=crossed, exchanged=exchanged), ())
        elif kind == "Softmax" and _kind(_behind(node)) == "Softmax":
            result = _saved(node, "result")
            if result is not None and result.numel():
                yield _Loss(_call("softmax", "probabilities", result.numel(), int(result.shape[-1])), ())
        elif kind in ("Mean", "Sum") and _shape(node) == ():
            before = _behind(node)
            name = _kind(before)
            alike = name != "Mul" or len({*before.next_functions}) == 1
            if name in BY_HAND and alike and _kind(difference := _behind(before)) in ("Sub", "Rsub"):
                shape = _shape(difference)
                yield _Loss(
                    _call(BY_HAND[name], "numbers", math.prod(shape))._replace(broadcast=_is_crossed(difference)), ()
                )

    def _likelihood(self, node: Any, labels: torch.Tensor, scores: torch.Tensor) -> _Loss:
        """Return the negative log likelihood that a node computes, or the cross entropy whose second half it is."""
        function, form = KINDS["NllLoss"], _form(node)
        if form == "log-probabilities" and _kind(before := _behind(node)) == "LogSoftmax":
            if _is_over_samples(before, scores):
                form = "numbers"
            else:
                function, form = "cross_entropy", _form(before)
        ignored = labels == _signed(node._saved_ignore_index)
        pairs = [pair for lookup in self._lookups for pair in self._pairs(labels, ignored, *lookup[:2])]
        is_flat = labels.dim() == 1 and labels.numel() >= MANY
        ends = [*labels.aminmax(), (labels[1:] < labels[:-1]).sum()] if is_flat else []
        if ends and labels.is_cpu and self._in_order is in_order:  # the loader may be gone when the numbers are judged
            sorted_class = not ends[2] and ends[1] - ends[0] <= 1
            self._in_order = partial(bool, sorted_class and in_order())
        call = _call(function, form, labels.numel(), int(scores.shape[1 if scores.dim() > 1 else 0]))
        digest = self._numbers.add(_digest(labels)) if labels.numel() >= MANY else -1
        weighed, ends_at = [*self._weighed(node, labels, ignored)], [*map(self._numbers.add, ends)]
        return _Loss(call, pairs, digest, weighed, self._numbers.add(ignored.sum()), ends_at)

    def _weighed(self, node: Any, labels: torch.Tensor, ignored: torch.Tensor) -> Iterator[tuple[int, int]]:
        """Yield the weight of each class, and how many of the first labels are of it."""
        weight = _saved(node, "weight")
        if weight is not None and weight.numel() <= MOST_CLASSES:
            few = labels.masked_fill(ignored, -1).flatten()[:MOST_LABELS]
            for number, of_class in enumerate(weight):
                yield self._numbers.add(of_class), self._numbers.add((few == number).sum())

    def _pairs(
        self, labels: torch.Tensor, ignored: torch.Tensor, tokens: torch.Tensor, padding: int
    ) -> Iterator[_Pair]:
        """Yield the labels of a loss beside tokens, by rows or by columns, if their numbers fit."""
        if labels.device != tokens.device:
            return
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
                    missed.append(self._numbers.add((differs & ~hidden[:, :end]).sum()))
                is_pad = of_rows == (padding if padding >= 0 else rows[:, :size])
                pads = is_pad & ~hidden if padding >= 0 else is_pad & ~hidden & _padding(rows, padding)[:, :size]
                both = self._numbers.add((pads[:, 1:] & pads[:, :-1]).sum())
                yield _Pair(missed, self._numbers.add((~hidden).sum()), both)
                break

    def _reading(self, kinds: Sequence[tuple[str, Any]]) -> Iterator[tuple[int, float]]:
        """Yield for each layer of attention over as many positions as there are tokens the weight for the next
        position: as the position of a number, or as one that is known, then behind -1. Other layers that read ahead
        count, too."""
        lengths = {size for tokens, _, _ in self._lookups for size in tokens.shape}
        labelled = self._labelled(kinds)
        number = 0
        for kind, node in kinds:
            if number == MOST_LAYERS or labelled is None:
                return
            if (mixing := _reads_on(kind, node)) is not None and mixing[0] in lengths:
                number += 1
                yield self._numbers.add(mixing[1]), 0.0
                continue
            weights, visible = _weights(kind, node)
            length = weights.shape[-1] if weights is not None else visible[0] if visible else 0
            if length not in lengths or length < 3:
                continue
            if visible is not None:
                number += 1
                yield -1, visible[1]
            elif weights is not None and weights.device == labelled.device:
                number += 1
                first = weights.flatten(0, -3)[0] if weights.dim() > 2 else weights
                ahead = first.diagonal(1)
                rows = labelled[: len(ahead)]
                yield self._numbers.add((ahead[: len(rows)] * rows).amax()), 0.0

    def _regrouping(self, kinds: Sequence[tuple[str, Any]]) -> Iterator[Regrouped]:
        """Yield the views that exchange axes, but for shifts of relative positions, by views of slices and padding."""
        of_scores, sliced = (
            {node.next_functions[0][0] for kind, node in kinds if kind == reader} for reader in ("LogSoftmax", "Slice")
        )
        for kind, node in kinds:
            if kind in VIEWS and (follower := node.next_functions[0])[0] is not None:
                before, after = _shape(*follower), _shape(node)
                swapped = node in of_scores and before[-2:] == after[:-3:-1] and before[:-1] != after[:-1]
                if (swapped or exchanges(before, after)) and node not in sliced and not _is_shifted(node):
                    yield Regrouped(before, after, self._place(node))

    def _off_axes(self, kinds: Sequence[tuple[str, Any]]) -> Iterator[str]:
        """Yield the places of products with weights of attention whose softmax is over none of their positions."""
        for _, node in filter(lambda pair: pair[0] == "Bmm", kinds):
            before = _behind(node)
            while _kind(before) in BETWEEN:
                before = _behind(before)
            weights = _saved(before, "result") if _kind(before) == "Softmax" else None
            axes = weights.dim() if weights is not None and _is_square(weights, 3) else 0
            if axes and _signed(before._saved_dim) % axes < axes - 2:
                yield self._place(before)
        for kind, node in kinds:
            if kind == "Softmax" and self._mixes(node):
                yield self._place(node)

    def _images(self, kinds: Sequence[tuple[str, Any]]) -> Iterator[tuple[Sequence[int], str]]:
        """Yield least and greatest number of the images that convolutions get, and how many are not whole, as positions
        of numbers, with the place; those behind which there is a norm are left out."""
        normed = {_behind(node) for kind, node in kinds if kind.endswith("Norm")}
        for kind, node in kinds:
            inputs = _saved(node, "input") if kind == "Convolution" and node.next_functions[0][0] is None else None
            if inputs is not None and inputs.dim() == 4 and inputs.shape[1] <= CHANNELS and node not in normed:
                few = inputs.flatten()[:MOST_LABELS]
                ends = [*map(self._numbers.add, (*few.aminmax(), (few != few.round()).sum()))]
                yield ends, self._names.get(id(getattr(node.next_functions[1][0], "variable", None)), "")

    def _mixes(self, softmax: Any) -> bool:
        """Return whether weights of several places of each sample of a loss have a sum of 1 over the samples."""
        weights = _saved(softmax, "result")
        if weights is None or weights.dim() not in (2, 3) or _signed(softmax._saved_dim) % weights.dim():
            return False
        rows, places = weights.shape[:2]
        return self._samples == {rows} and 1 < rows != places > 1

    def _crossed(self, kinds: Sequence[tuple[str, Any]]) -> Crossing | None:
        """Return the first layer that takes the samples of a loss for a sequence, and the places of each for samples,
        if all layers do. Tokens must have the same two axes."""
        layers = [(*sizes, node) for kind, node in kinds if (sizes := _sequences(kind, node)) is not None]
        extents = {(length, rows) for length, rows, _ in layers}
        if len(extents) != 1 or len(self._samples) != 1:
            return None
        (length, rows), samples = next(iter(extents)), next(iter(self._samples))
        shapes = [tuple(tokens.shape) for tokens, _, _ in self._lookups]
        of_tokens = not shapes or any(shape[0] == length and 0 <= rows - shape[1] <= 2 for shape in shapes)
        if length != samples or rows < 2 or rows % samples == 0 or not of_tokens:
            return None
        return Crossing(samples, rows, self._place(layers[-1][2]))

    def _masked(self, kinds: Sequence[tuple[str, Any]]) -> Iterator[tuple[_Mask, str]]:
        """Yield what the last position of each layer of attention reads of the tokens, with the place of the layer."""
        for kind, node in kinds:
            weights, _ = _weights(kind, node)
            if weights is None or weights.dim() != 4:
                continue
            read = weights[:, 0, -1] > 0
            for tokens, _, _ in self._lookups:
                if read.shape == tokens.shape and read.device == tokens.device:
                    yield self._mask(tokens, read), self._place(node)

    def _mask(self, tokens: torch.Tensor, read: torch.Tensor) -> _Mask:
        least, most = torch.where(read, tokens, LARGE), torch.where(read, tokens, -1)
        hidden_least, hidden_most = torch.where(read, LARGE, tokens), torch.where(read, -1, tokens)
        ends = least.amin(), most.amax(), hidden_least.amin(), hidden_most.amax(), read.sum(1).amax()
        return _Mask(*map(self._numbers.add, ends))

    def _padded_reads(self, kinds: Sequence[tuple[str, Any]]) -> Iterator[tuple[int, int, bool, str]]:
        """Yield the weight with which what is no padding reads padding, at most, for each layer of attention and each
        mean over positions: positions of numbers, that of the jumps of the tokens behind it, and whether it is a mean,
        with the place."""
        tables = [row for row in self._lookups if min(row[0].shape) > 1]
        pads = [(_padding(tokens, padding), jumps) for tokens, padding, jumps in tables]
        for kind, node in kinds if pads else ():
            weights, visible = _weights(kind, node)
            for mask, jumps in pads:
                rows, length = mask.shape
                if weights is not None and weights.shape[-1] == length and weights.numel() % (rows * length**2) == 0:
                    of_rows = weights.reshape(rows, -1, length, length) if weights.shape[0] % rows == 0 else None
                    if of_rows is not None and weights.device == mask.device:
                        reads = of_rows * (mask[:, None, None, :] & ~mask[:, None, :, None])
                        yield self._numbers.add(reads.amax()), jumps, False, self._place(node)
                elif visible is not None and visible[0] == length:
                    before = mask if visible[1] else mask.cummax(1).values
                    reads = before.any(1, keepdim=True) if visible[1] else before
                    yield self._numbers.add((reads & ~mask).any()), jumps, False, self._place(node)
                elif kind == "Mean" and _is_mean_of(node, (rows, length)):
                    yield self._numbers.add(mask.any()), jumps, True, self._place(node)

    def _has_moving_goal(self, kind: str, node: Any) -> bool:
        """Return whether a distance has a gradient on both sides, as Q learning does not have: it compares scores that
        were chosen with a goal of the best scores, or values with rewards and a part of what the same layer returns."""
        if kind not in DISTANCES or len(node.next_functions) < 2:
            return False
        (scores, _), (goal, _) = node.next_functions[:2]
        if scores is None or goal is None:
            return False
        kinds = set[str]()
        for _ in range(MOST_TERMS):
            if _kind(goal) not in ARITHMETIC:
                break
            if any(follower is None for follower, _ in goal.next_functions):
                kinds.add(_kind(goal))
            goal = _behind(goal)
        if _kind(goal) in ("Max", "Amax"):
            return "Gather" in (_kind(scores), _kind(_behind(scores)))
        is_return = "Add" in kinds and "Mul" in kinds and _kind(goal) in PRODUCTS
        return is_return and _kind(scores) == _kind(goal) and self._place(goal) == self._place(scores) != ""

    def _tables(self, kinds: Sequence[tuple[str, Any]]) -> Iterator[tuple[int, int, str]]:
        """Yield the least and the greatest row that is looked up in a table, as positions of numbers, with its place.
        Tables have more rows than a sequence has positions; those of kinds have few."""
        for kind, node in kinds:
            indices = _saved(node, "indices") if kind == "Embedding" else None
            if indices is None or indices.numel() < MANY:
                continue
            if int(node._saved_weight_sym_argsize_0) >= max(FEWEST_ROWS, indices.shape[-1]) and indices.dim() <= 2:
                least, most = indices.aminmax()
                # one row for all samples may be their class
                least = least if indices.dim() == 2 else least.new_zeros(())
                yield self._numbers.add(least), self._numbers.add(most), self._place(node)
                if self._lookups and indices.dim() == 2 and len(indices) >= KEPT <= indices.shape[1]:
                    least, most = (indices - torch.arange(len(indices), device=indices.device)[:, None]).aminmax()
                    yield self._numbers.add(least), self._numbers.add(most), self._place(node)

    def _place(self, node: Any) -> str:
        """Return the name of the parameter that is nearest before a node; empty if none is."""
        waiting, seen = deque([node]), {node}
        while waiting:
            node = waiting.popleft()
            if name := self._names.get(id(getattr(node, "variable", None))):
                return name
            followers = dict.fromkeys(follower for follower, _ in node.next_functions)  # in one order on all ranks
            waiting += [follower for follower in followers if follower is not None and follower not in seen]
            seen |= followers.keys()
        return ""

    def _labelled(self, kinds: Sequence[tuple[str, Any]]) -> torch.Tensor | None:
        """Return which positions of the first sample have a label; None without labels that fit any tokens."""
        for kind, node in kinds:
            if not kind.startswith("NllLoss") or (labels := _saved(node, "target")) is None:
                continue
            ignored = labels == _signed(node._saved_ignore_index)
            for tokens, _, _ in self._lookups:
                count, length = tokens.shape
                for cut in (0, 1, 2):
                    if labels.numel() == count * (length - cut):
                        return ~ignored.reshape(count, -1)[0]
        return None


def _counted(loss: _Loss, numbers: Sequence[float]) -> LossCall:
    """Return a loss with what was counted of its labels."""
    call = loss.call
    if loss.digest >= 0:
        call = call._replace(labels=int(numbers[loss.digest]))
    if loss.ignored >= 0:
        call = call._replace(ignored=numbers[loss.ignored] / call.rows)
    if loss.weighed:
        call = call._replace(weights=tuple((numbers[weight], numbers[count]) for weight, count in loss.weighed))
    if loss.ends:
        least, most, falls = (numbers[end] for end in loss.ends)
        call = call._replace(spread=math.inf if falls else most - least)
    return call


def _related(loss: _Loss, numbers: Sequence[float]) -> LossCall:
    """Return a loss with the relation of its labels to the tokens: of those that hold by chance, too, the one that is
    meant."""
    relations: dict[Relation, float] = {}
    call = _counted(loss, numbers)
    for pair in loss.pairs:
        labels = numbers[pair.labels]
        same, following, second = (numbers[missed] for missed in pair.missed)
        padded = numbers[pair.padded] / max(labels, 1.0)
        if following <= MISSED * labels:  # neighbours are mostly equal, unless labels differ from their own tokens
            relation: Relation = "next" if same > max(MISSED * labels, 2 * following) else "other"
            relations[relation] = max(padded, relations.get(relation, 0.0))
        elif not same:
            relations["same"] = padded
        elif not second:
            relations["second"] = padded
    order: tuple[Relation, ...] = ("next", "other", "same", "second")
    for relation in order:
        if relation in relations:
            return call._replace(relation=relation, padded=relations[relation])
    return call


def _call(function: str, form: Form, rows: int, classes: int = 0) -> LossCall:
    return LossCall(0, function, "", form, classes, rows, 0.0, math.nan, "other", 0)


def _weights(kind: str, node: Any) -> tuple[torch.Tensor | None, tuple[int, float] | None]:
    """Return the weights of attention, or a mask of it as weights of 0 and 1; or the number of positions with the
    weight that is known for the next one."""
    if kind in ("Softmax", "SafeSoftmax"):
        result = _saved(node, "result")
        over_last = result is not None and _signed(node._saved_dim) in (-1, result.dim() - 1)
        return (result if over_last and _is_square(result, 3) else None), None
    if not kind.startswith("ScaledDotProduct") or not hasattr(node, "_saved_is_causal"):
        return None, None
    query, key = _saved(node, "query"), _saved(node, "key")
    if query is None or key is None or query.shape[-2] != key.shape[-2]:
        return None, None
    names = [name for name in ("attn_mask", "attn_bias") if hasattr(node, f"_saved_{name}")]
    mask = next((mask for name in names if (mask := _saved(node, name)) is not None), None)
    if node._saved_is_causal or mask is None:
        return None, (int(query.shape[-2]), 0.0 if node._saved_is_causal else 1.0)
    if mask.dim() > 1 and mask.shape[-2] == 1:  # one mask for all positions
        mask = mask.expand(*mask.shape[:-2], mask.shape[-1], mask.shape[-1])
    visible = mask if mask.dtype is torch.bool else mask > HIDDEN
    return (visible.float() if _is_square(mask, 2) else None), None


def _digest(labels: torch.Tensor) -> torch.Tensor:
    """Return a number below that of the primes, which float32 holds exactly, for labels in their order."""
    few = labels.flatten()[:MOST_LABELS]
    return ((few + 1) * torch.arange(1, len(few) + 1, device=few.device)).sum() % PRIME


def _reads_on(kind: str, node: Any) -> tuple[int, torch.Tensor] | None:
    """Return the length of the sequences that a layer gets which reads later positions, by convolution or recurrence
    from the end, with a number that is 0 if its weights for these are; None of any other node."""
    if kind in RECURRENT:
        steps, reverse = _saved(node, "input"), getattr(node, "_saved_reverse", False)
        return (int(steps.shape[0]), steps.new_ones(())) if steps is not None and steps.dim() == 3 and reverse else None
    inputs, weight = (_saved(node, name) if kind == "Convolution" else None for name in ("input", "weight"))
    if inputs is None or weight is None or weight.dim() != 3 or node._saved_transposed or node._saved_stride != (1,):
        return None
    size, (spread,), (begin,) = int(weight.shape[2]), node._saved_dilation, node._saved_padding
    end, before = begin, _behind(node)
    if _kind(before) == "ConstantPadNd" and len(ends := before._saved_pad) >= 2:
        begin, end = begin + ends[0], end + ends[1]
    length = int(inputs.shape[2]) + 2 * node._saved_padding[0] - begin - end
    ahead = [place for place in range(size) if place * spread > begin]
    if begin + end != spread * (size - 1) or not ahead:
        return None
    return length, weight[:, :, ahead[0] :].abs().amax()


def _sequences(kind: str, node: Any) -> tuple[int, int] | None:
    """Return the length of the sequences that a layer of attention or recurrence gets, and their number; None of any
    other node."""
    if kind in RECURRENT:
        steps = _saved(node, "input")
        return None if steps is None or steps.dim() != 3 else (int(steps.shape[0]), int(steps.shape[1]))
    weights, visible = _weights(kind, node)
    if visible is not None:
        query = _saved(node, "query")
        return None if query is None else (visible[0], int(query.shape[0]))
    return None if weights is None or weights.dim() < 3 else (int(weights.shape[-1]), int(weights.shape[0]))


def _is_over_samples(softmax: Any, scores: torch.Tensor) -> bool:
    """Return whether logarithms of probabilities are normalized over another axis than the classes of a loss."""
    result = _saved(softmax, "result")
    if result is None or result.dim() < 2 or scores.dim() < 2:
        return False
    axis = _signed(softmax._saved_dim) % result.dim()
    return axis != 1 if result.shape == scores.shape else result.shape[axis] != scores.shape[1]


def _negated(root: Any) -> str:
    """Return the name of the mean loss whose negative, perhaps with a factor, is a root; empty if there is none."""
    while _kind(root) in ("Mul", "Div") and sum(follower is not None for follower, _ in root.next_functions) == 1:
        root = _behind(root)
    before = _behind(root)
    return KINDS[kind] if _kind(root) == "Neg" and (kind := _kind(before)) in KINDS and _shape(before) == () else ""


def _factor(root: Any) -> float:
    """Return the factor by which a root is a mean loss of the framework; NaN if it is something else."""
    factor = 1.0
    while (scale := _scale(root)) is not None or _kind(root) in KEEPS:
        if scale is not None:
            factor *= float(scale) if scale.is_cpu else math.nan
        root = _behind(root)
    return factor if _kind(root) in KINDS and root._saved_reduction == 1 else math.nan


def _scale(node: Any) -> torch.Tensor | None:
    """Return the number by which a node multiplies what it reads; None of any other node."""
    kind = _kind(node)
    number = _saved(node, "other") if kind in ("Mul", "Div") and _is_of_one(node) else None
    if number is None or number.dim():
        return None
    return number if kind == "Mul" else 1.0 / number


def _is_of_one(node: Any) -> bool:
    """Return whether only the first of two numbers that a node reads has a gradient."""
    return len(node.next_functions) == 2 and node.next_functions[1][0] is None


def _remainder(root: torch.Tensor, node: Any) -> torch.Tensor | None:
    """Return what a root has beside the losses of the framework whose sum it is; None if nothing was added to these, or
    if any of them cannot be computed again."""
    waiting: list[tuple[Any, Any]] = [(node, 1.0)]
    losses, is_more = list[tuple[Any, Any]](), False
    for _ in range(MOST_TERMS):
        if not waiting:
            break
        node, factor = waiting.pop()
        if (kind := _kind(node)) in ("Add", "Sub") and len(node.next_functions) == 2:
            second = node._saved_alpha if kind == "Add" else -node._saved_alpha
            terms = [*zip(node.next_functions, (1.0, second), strict=True)]
            is_more |= any(follower is None for (follower, _), _ in terms)
            waiting += [(follower, factor * sign) for (follower, _), sign in terms if follower is not None]
        elif kind in TERMS:
            losses.append((node, factor))
        elif kind in KEEPS or (scale := _scale(node)) is not None:
            waiting.append((node.next_functions[0][0], factor if kind in KEEPS else factor * scale))
        else:
            return None
    if waiting or not is_more or root.dtype not in (torch.float32, torch.float64):
        return None
    values = [_value(node) for node, _ in losses]
    if any(value is None for value in values):
        return None
    return root - sum(factor * value for (_, factor), value in zip(losses, values, strict=True))


def _padding(tokens: torch.Tensor, padding: int) -> torch.Tensor:
    """Return which tokens are padding: that of the table at the ends of rows, or what most rows end with, if it fills
    much of the ends of most rows, and not as much of each."""
    is_given = padding >= 0
    pad = tokens.new_full((), padding) if is_given else tokens[:, -1].mode().values
    is_pad = tokens == pad
    ends = is_pad.flip(1).cummin(1).values.flip(1) | (is_pad.cummin(1).values if is_given else False)
    runs = ends.sum(1)
    usual = (runs.amax() > 2) & (runs.amin() < runs.amax())
    if not is_given:
        usual &= ((runs > 1).float().mean() > 0.5) & (ends.float().mean() > SHARE_PADDED)
    return ends & usual


def _is_mean_of(node: Any, positions: tuple[int, int]) -> bool:
    """Return whether a mean is one over the positions of tokens, of which nothing has hidden any."""
    shape, axes = tuple(node._saved_self_sym_sizes), getattr(node, "_saved_dim", None) or ()
    if len(shape) != 3 or shape[:2] != positions or [_signed(axis) % 3 for axis in axes] != [1]:
        return False
    return _kind(_behind(node)) not in ("Mul", "MaskedFill", "Where", "Index")


def _batch(kind: str, node: Any) -> tuple[int, int, int] | None:
    """Return address and version of the memory of inputs that are a small part of it, and where they begin; None of
    what has a gradient, and of inputs of their own."""
    name, place = {"Convolution": ("input", 0), "Addmm": ("mat1", 1), "Mm": ("self", 0)}.get(kind, ("", 0))
    if not name or len(node.next_functions) <= place or node.next_functions[place][0] is not None:
        return None
    inputs = _saved(node, name)
    if inputs is None or inputs.layout is not torch.strided:
        return None
    memory = inputs.untyped_storage()
    if memory.nbytes() < 2 * inputs.numel() * inputs.element_size():
        return None
    return memory.data_ptr(), inputs._version, int(inputs.storage_offset())


def _are_bytes(least: float, most: float, broken: float) -> bool:
    """Return whether numbers are the bytes of images."""
    return least >= 0 and LIGHT <= most <= BYTE and not broken


def _is_of_one_sample(kind: str, node: Any) -> bool:
    """Return whether a node is a batch norm in training that gets one sample."""
    inputs = _saved(node, "input") if kind.endswith("BatchNorm") and getattr(node, "_saved_training", False) else None
    return inputs is not None and len(inputs) == 1


def _value(node: Any) -> torch.Tensor | None:
    """Return the loss that a node has computed, computed again; None if that cannot be."""
    function, options = TERMS[_kind(node)]
    scores, labels = _saved(node, "self"), _saved(node, "target")
    if scores is None or labels is None or not node._saved_reduction:
        return None
    ends = (_signed(node._saved_ignore_index),) if function.startswith("nll") else ()
    more = [_saved(node, option) for option in options]
    value = getattr(torch.ops.aten, function)(scores, labels, *more, node._saved_reduction, *ends)
    return value[0] if ends else value


def _dropout(kind: str, node: Any) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return two numbers of the mask of a dropout: the sum of the places that are kept, and how many are not; None if a
    node is no dropout, or a small one."""
    if kind == "NativeDropout":
        mask = _saved(node, "result1")
    elif kind == "Mul" and _is_of_one(node):  # on a CPU
        mask = _noise(_saved(node, "other"))
    else:
        return None
    if mask is None or mask.numel() < FEWEST_DROPPED:
        return None
    mask = mask.flatten()[:MOST_DROPPED]
    return (mask * torch.arange(len(mask), device=mask.device)).sum(), (~mask).sum()


def _noise(factors: torch.Tensor | None) -> torch.Tensor | None:
    """Return which of the first factors keep a number, if they are those of dropout: 0, and what makes up for it."""
    if factors is None or not factors.is_cpu or not factors.is_floating_point() or factors.numel() < MANY:
        return None
    if not factors.is_contiguous():
        return None
    few = factors.view(-1)[:MOST_DROPPED]
    mask, scale = few != 0, float(few.amax())
    if scale <= 1 or not bool(((few == scale) | ~mask).all()):
        return None
    share, number = 1 / scale, len(few)
    deviation = math.sqrt(share * (1 - share) / number)
    return mask if abs(float(mask.float().mean()) - share) <= 5 * deviation else None


def _foreign(nodes: Sequence[Any], names: Mapping[int, str]) -> tuple[Callable[[], object], ...]:
    """Return references to the parameters that have no name, of a graph that has others, too."""
    leaves = [leaf for node in nodes if (leaf := getattr(node, "variable", None)) is not None]
    is_model = any(id(leaf) in names for leaf in leaves)
    unknown = (leaf for leaf in leaves if is_model and id(leaf) not in names and isinstance(leaf, torch.nn.Parameter))
    return tuple(map(weakref.ref, unknown))


def _is_shifted(node: Any) -> bool:
    """Return whether a view is of what was padded, or of a slice."""
    return _kind(_behind(node)) in ("Slice", "Cat", "ConstantPadNd")


def _is_square(tensor: torch.Tensor | None, axes: int) -> bool:
    """Return whether a tensor has ``axes`` axes at least, the last two of one size."""
    return tensor is not None and tensor.dim() >= axes and tensor.shape[-1] == tensor.shape[-2]


def _form(node: Any) -> Form:
    """Return the form of what a loss gets, by what has computed it."""
    before = _behind(node)
    kind = _kind(before)
    if kind == "Softmax":
        return "probabilities"
    if kind == "Sigmoid":
        return "sigmoid"
    if kind == "Relu":
        return "rectified"
    if kind == "NativeDropout" or (kind == "Mul" and _noise(_saved(before, "other")) is not None):
        return "dropped"
    return "numbers" if kind in PRODUCTS else "log-probabilities"


def _behind(node: Any) -> Any:
    """Return the node that has computed what ``node`` reads first, past those that change no number; None if there is
    none."""
    for _ in range(8):
        node = next((follower for follower, _ in node.next_functions if follower is not None), None)
        if node is None or _kind(node) not in KEEPS:
            break
    return node


def _expanded(tensor: torch.Tensor, partner: torch.Tensor) -> list[int]:
    """Return the strides of ``tensor`` along axes of several numbers where that of ``partner`` is not 0."""
    if tensor.shape != partner.shape:
        return []
    pairs = zip(tensor.shape, tensor.stride(), partner.stride(), strict=True)
    return [stride for size, stride, partner_stride in pairs if size > 1 and partner_stride]


def _is_crossed(difference: Any) -> bool:
    """Return whether a difference compares N scores, of shape (N, 1) or (N,), with N numbers of the other shape."""
    shape = _shape(difference)
    operands = [(follower, output) for follower, output in difference.next_functions if follower is not None]
    if len(shape) != 2 or shape[0] != shape[1] or shape[0] < 2 or len(operands) != 1:
        return False
    return _shape(*operands[0]) in ((shape[0], 1), (shape[0],))


def _shape(node: Any, output: int = 0) -> tuple[int, ...]:
    """Return the shape of a result of a node; that of a scalar's differs from it if it cannot be seen."""
    results = getattr(node, "_input_metadata", ())  # not in torch 2.4
    return tuple(map(int, results[output].shape)) if output < len(results) else (0,)


def _jumps(tokens: torch.Tensor) -> torch.Tensor:
    """Return how often neighbouring numbers differ by more than 1, as those of positions and of segments never do."""
    return ((tokens[:, 1:] - tokens[:, :-1]).abs() > 1).sum()


def _saved(node: Any, name: str) -> torch.Tensor | None:
    """Return a tensor that a node has saved; None if there is none that can be read."""
    tensor = next((tensor for of, tensor in saved(node) if of == name), None)
    return tensor if tensor is not None and type(tensor) in PLAIN else None


def _signed(number: int) -> int:
    """Return a number that torch saves without its sign."""
    return number - (1 << 64) if number >= 1 << 63 else number


def _kind(node: Any) -> str:
    """Return the kind of a node; empty for None and for that of a custom function."""
    return "" if node is None or isinstance(node, FunctionCtx) else operation_kinds.base(node.name())
