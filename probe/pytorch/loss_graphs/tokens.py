"""Layers that mix positions, beside the tokens that embeddings have got: attention, recurrence and convolution, and
what they read that they should not."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from probe.core.checks.loss_calls import READ, Crossing, Regrouped, exchanges
from probe.pytorch.loss_graphs.nodes import Graph, behind, kind_of, saved_tensor, shape_of, signed

MOST_LAYERS = 8
VIEWS = frozenset({"View", "UnsafeView", "ReshapeAlias"})
"""Kinds of nodes that give numbers another shape, in their order."""
RECURRENT = frozenset({"MkldnnRnnLayer", "CudnnRnn"})
"""Kinds of nodes that are a whole layer of recurrence; what they get has the steps first (torch 2.13)."""
BETWEEN = frozenset({"Expand", "NativeDropout", "Mul"})
"""Kinds of nodes between weights of attention and their product with values."""
LARGE = 1 << 24
"""Number above all tokens that float32 holds exactly."""
HIDDEN = -1e4
"""Number of a mask that is added to scores, from which downwards it hides a position."""
SHARE_PADDED = 0.1
"""Share of the tokens at least that are padding, where nothing says which token that is."""


class Ahead(NamedTuple):
    """Weights with which positions read the next ones."""

    least: float
    """Least of all layers; NaN if no layer shows it, or several sequences of tokens are read."""
    most: float
    is_causal: bool
    """True if a layer reads no next position, also where several sequences of tokens are read."""


class Mask(NamedTuple):
    """Tokens that attention reads, and those that it hides: positions among the numbers."""

    least: int
    most: int
    hidden_least: int
    hidden_most: int
    number: int
    """Most tokens that are read of a sequence."""

    def hides_all_but_one(self, numbers: Sequence[float]) -> bool:
        """Return whether what is read is one and the same token, several times, and what is hidden is not."""
        least, most, hidden_least, hidden_most, number = (numbers[position] for position in self)
        return least == most and hidden_least < hidden_most and number > 1


class PaddedRead(NamedTuple):
    """Layer beside padding."""

    weight: int
    """Weight with which what is no padding reads padding, at most: position among the numbers."""
    jumps: int
    """The same of the jumps of the tokens behind it."""
    is_mean: bool
    """True of a mean over positions, not of attention."""
    place: str


def ahead(graph: Graph) -> Callable[[Sequence[float]], Ahead]:
    """Return a function of the numbers that returns with which weights the next positions are read."""
    weights, several = [*_weights_ahead(graph)], graph.several_texts()

    def read(numbers: Sequence[float]) -> Ahead:
        layers = [weight if isinstance(weight, float) else numbers[weight] for weight in weights]
        is_known = layers and not several(numbers)
        least, most = (min(layers), max(layers)) if is_known else (math.nan, math.nan)
        return Ahead(least, most, any(weight <= READ for weight in layers))

    return read


def inverted(graph: Graph) -> Callable[[Sequence[float]], str | None]:
    """Return a function of the numbers that returns the place of the first attention that reads only what is one and
    the same token, of several in each sequence, and hides all others; None if none does."""
    masks = [*_masks(graph)][:MOST_LAYERS]
    return lambda numbers: next((place for mask, place in masks if mask.hides_all_but_one(numbers)), None)


def padding_read(graph: Graph) -> Callable[[Sequence[float]], str | None]:
    """Return a function of the numbers that returns the place of the first layer in which what is no padding reads
    padding: attention, if all attention does, or a mean over positions. It returns None if there is none."""
    layers, several = [*_padded_reads(graph)], graph.several_texts()

    def read(numbers: Sequence[float]) -> str | None:
        texts = [layer for layer in layers if numbers[layer.jumps] and not several(numbers)]
        reads = [(layer, numbers[layer.weight] > READ) for layer in texts]
        all_read = all(is_read for layer, is_read in reads if not layer.is_mean)
        return next((layer.place for layer, is_read in reads if is_read and (layer.is_mean or all_read)), None)

    return read


def regrouped(graph: Graph) -> Regrouped | None:
    """Return the first view that exchanges axes, but for shifts of relative positions, by views of slices and
    padding."""
    of_scores, sliced = (
        {node.next_functions[0][0] for kind, node in graph.kinds if kind == reader}
        for reader in ("LogSoftmax", "Slice")
    )
    for kind, node in graph.kinds:
        if kind in VIEWS and (follower := node.next_functions[0])[0] is not None:
            before, after = shape_of(*follower), shape_of(node)
            swapped = node in of_scores and before[-2:] == after[:-3:-1] and before[:-1] != after[:-1]
            is_shifted = kind_of(behind(node)) in ("Slice", "Cat", "ConstantPadNd")
            if (swapped or exchanges(before, after)) and node not in sliced and not is_shifted:
                return Regrouped(before, after, graph.place(node))
    return None


def off_axis(graph: Graph, samples: set[int]) -> str | None:
    """Return the place of a product with weights of attention whose softmax is over none of their positions, or of
    weights of several places whose sum is 1 over the samples of a loss; None if there is none."""
    for _, node in filter(lambda pair: pair[0] == "Bmm", graph.kinds):
        before = behind(node)
        while kind_of(before) in BETWEEN:
            before = behind(before)
        weights = saved_tensor(before, "result") if kind_of(before) == "Softmax" else None
        axes = weights.dim() if weights is not None and _is_square(weights, 3) else 0
        if axes and signed(before._saved_dim) % axes < axes - 2:
            return graph.place(before)
    # scores that have both are assigned, as to experts or clusters
    sources = Counter(_scores(node) for kind, node in graph.kinds if kind in ("Softmax", "LogSoftmax"))
    softmaxes = (node for kind, node in graph.kinds if kind == "Softmax" and sources[_scores(node)] == 1)
    return next((graph.place(node) for node in softmaxes if _mixes(node, samples)), None)


def crossing(graph: Graph, samples: set[int]) -> Crossing | None:
    """Return the first layer that takes the samples of a loss for a sequence, and the places of each for samples, if
    all layers do. Tokens must have the same two axes.

    Args:
        samples: numbers of samples that losses compare.
    """
    layers = [(*sizes, node) for kind, node in graph.kinds if (sizes := _sequences(kind, node)) is not None]
    extents = {(length, rows) for length, rows, _ in layers}
    if len(extents) != 1 or len(samples) != 1:
        return None
    (length, rows), number = next(iter(extents)), next(iter(samples))
    shapes = [tuple(lookup.tokens.shape) for lookup in graph.lookups]
    of_tokens = not shapes or any(shape[0] == length and 0 <= rows - shape[1] <= 2 for shape in shapes)
    if length != number or rows < 2 or rows % number == 0 or not of_tokens:
        return None
    return Crossing(number, rows, graph.place(layers[-1][2]))


def padding_of(tokens: torch.Tensor, padding: int) -> torch.Tensor:
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


def _weights_ahead(graph: Graph) -> Iterator[int | float]:
    """Yield for each layer of attention over as many positions as there are tokens the weight for the next position: as
    an ``int``, the position of a number, or as a ``float`` if it is known. Other layers that read ahead count, too."""
    lengths = {size for lookup in graph.lookups for size in lookup.tokens.shape}
    labelled = _labelled(graph)
    number = 0
    for kind, node in graph.kinds:
        if number == MOST_LAYERS or labelled is None:
            return
        if (mixing := _reads_on(kind, node)) is not None and mixing[0] in lengths:
            number += 1
            yield graph.want(mixing[1])
            continue
        weights, visible = _weights(kind, node)
        length = weights.shape[-1] if weights is not None else visible[0] if visible else 0
        if length not in lengths or length < 3:
            continue
        if visible is not None:
            number += 1
            yield visible[1]
        elif weights is not None and weights.device == labelled.device:
            number += 1
            first = weights.flatten(0, -3)[0] if weights.dim() > 2 else weights
            following = first.diagonal(1)
            rows = labelled[: len(following)]
            yield graph.want((following[: len(rows)] * rows).amax())


def _masks(graph: Graph) -> Iterator[tuple[Mask, str]]:
    """Yield what the last position of each layer of attention reads of the tokens, with the place of the layer."""
    for kind, node in graph.kinds:
        weights, _ = _weights(kind, node)
        if weights is None or weights.dim() != 4:
            continue
        read = weights[:, 0, -1] > 0
        for tokens, _, _ in graph.lookups:
            if read.shape == tokens.shape and read.device == tokens.device:
                least, most = torch.where(read, tokens, LARGE), torch.where(read, tokens, -1)
                hidden_least, hidden_most = torch.where(read, LARGE, tokens), torch.where(read, -1, tokens)
                ends = least.amin(), most.amax(), hidden_least.amin(), hidden_most.amax(), read.sum(1).amax()
                yield Mask(*map(graph.want, ends)), graph.place(node)


def _padded_reads(graph: Graph) -> Iterator[PaddedRead]:
    """Yield each layer of attention and each mean over positions, of tokens some of which are padding."""
    tables = [lookup for lookup in graph.lookups if min(lookup.tokens.shape) > 1]
    pads = [(padding_of(tokens, padding), jumps) for tokens, padding, jumps in tables]
    for kind, node in graph.kinds if pads else ():
        weights, visible = _weights(kind, node)
        for mask, jumps in pads:
            rows, length = mask.shape
            if weights is not None and weights.shape[-1] == length and weights.numel() % (rows * length**2) == 0:
                of_rows = weights.reshape(rows, -1, length, length) if weights.shape[0] % rows == 0 else None
                if of_rows is not None and weights.device == mask.device:
                    reads = of_rows.amax(1) * (mask[:, None, :] & ~mask[:, :, None])
                    yield PaddedRead(graph.want(reads.amax()), jumps, False, graph.place(node))
            elif visible is not None and visible[0] == length:
                before = mask if visible[1] else mask.cummax(1).values
                reads = before.any(1, keepdim=True) if visible[1] else before
                yield PaddedRead(graph.want((reads & ~mask).any()), jumps, False, graph.place(node))
            elif kind == "Mean" and _is_mean_of(node, (rows, length)):
                yield PaddedRead(graph.want(mask.any()), jumps, True, graph.place(node))


def _labelled(graph: Graph) -> torch.Tensor | None:
    """Return which positions of the first sample have a label; None without labels that fit any tokens."""
    for kind, node in graph.kinds:
        if not kind.startswith("NllLoss") or (labels := saved_tensor(node, "target")) is None:
            continue
        ignored = labels == signed(node._saved_ignore_index)
        for lookup in graph.lookups:
            count, length = lookup.tokens.shape
            for cut in (0, 1, 2):
                if labels.numel() == count * (length - cut):
                    return ~ignored.reshape(count, -1)[0]
    return None


def _weights(kind: str, node: Any) -> tuple[torch.Tensor | None, tuple[int, float] | None]:
    """Return the weights of attention, or a mask of it as weights of 0 and 1; or the number of positions with the
    weight that is known for the next one."""
    if kind in ("Softmax", "SafeSoftmax"):
        result = saved_tensor(node, "result")
        over_last = result is not None and signed(node._saved_dim) in (-1, result.dim() - 1)
        return (result if over_last and _is_square(result, 3) else None), None
    if not kind.startswith("ScaledDotProduct") or not hasattr(node, "_saved_is_causal"):
        return None, None
    query, key = saved_tensor(node, "query"), saved_tensor(node, "key")
    if query is None or key is None or query.shape[-2] != key.shape[-2]:
        return None, None
    names = [name for name in ("attn_mask", "attn_bias") if hasattr(node, f"_saved_{name}")]
    mask = next((mask for name in names if (mask := saved_tensor(node, name)) is not None), None)
    if node._saved_is_causal or mask is None:
        return None, (int(query.shape[-2]), 0.0 if node._saved_is_causal else 1.0)
    if mask.dim() > 1 and mask.shape[-2] == 1:  # one mask for all positions
        mask = mask.expand(*mask.shape[:-2], mask.shape[-1], mask.shape[-1])
    visible = mask if mask.dtype is torch.bool else mask > HIDDEN
    return (visible.float() if _is_square(mask, 2) else None), None


def _reads_on(kind: str, node: Any) -> tuple[int, torch.Tensor] | None:
    """Return the length of the sequences that a layer gets which reads later positions, by convolution or recurrence
    from the end, with a number that is 0 if its weights for these are; None of any other node."""
    if kind in RECURRENT:
        steps, reverse = saved_tensor(node, "input"), getattr(node, "_saved_reverse", False)
        return (int(steps.shape[0]), steps.new_ones(())) if steps is not None and steps.dim() == 3 and reverse else None
    inputs, weight = (saved_tensor(node, name) if kind == "Convolution" else None for name in ("input", "weight"))
    if inputs is None or weight is None or weight.dim() != 3 or node._saved_transposed or node._saved_stride != (1,):
        return None
    size, (spread,), (begin,) = int(weight.shape[2]), node._saved_dilation, node._saved_padding
    end, before = begin, behind(node)
    if kind_of(before) == "ConstantPadNd" and len(ends := before._saved_pad) >= 2:
        begin, end = begin + ends[0], end + ends[1]
    length = int(inputs.shape[2]) + 2 * node._saved_padding[0] - begin - end
    later = [place for place in range(size) if place * spread > begin]
    if begin + end != spread * (size - 1) or not later:
        return None
    return length, weight[:, :, later[0] :].abs().amax()


def _sequences(kind: str, node: Any) -> tuple[int, int] | None:
    """Return the length of the sequences that a layer of attention or recurrence gets, and their number; None of any
    other node."""
    if kind in RECURRENT:
        steps = saved_tensor(node, "input")
        return None if steps is None or steps.dim() != 3 else (int(steps.shape[0]), int(steps.shape[1]))
    weights, visible = _weights(kind, node)
    if visible is not None:
        query = saved_tensor(node, "query")
        return None if query is None else (visible[0], int(query.shape[0]))
    return None if weights is None or weights.dim() < 3 else (int(weights.shape[-1]), int(weights.shape[0]))


def _scores(softmax: Any) -> Any:
    """Return the node that has computed what a softmax reads, but for a temperature."""
    node = behind(softmax)
    while kind_of(node) in ("Mul", "Div"):
        node = behind(node)
    return node


def _mixes(softmax: Any, samples: set[int]) -> bool:
    """Return whether weights of several places of each sample of a loss have a sum of 1 over the samples."""
    weights = saved_tensor(softmax, "result")
    if weights is None or weights.dim() not in (2, 3) or signed(softmax._saved_dim) % weights.dim():
        return False
    rows, places = weights.shape[:2]
    return samples == {rows} and 1 < rows != places > 1


def _is_mean_of(node: Any, positions: tuple[int, int]) -> bool:
    """Return whether a mean is one over the positions of tokens, of which nothing has hidden any."""
    shape, axes = tuple(node._saved_self_sym_sizes), getattr(node, "_saved_dim", None) or ()
    if len(shape) != 3 or shape[:2] != positions or [signed(axis) % 3 for axis in axes] != [1]:
        return False
    return kind_of(behind(node)) not in ("Mul", "MaskedFill", "Where", "Index")


def _is_square(tensor: torch.Tensor | None, axes: int) -> bool:
    """Return whether a tensor has ``axes`` axes at least, the last two of one size."""
    return tensor is not None and tensor.dim() >= axes and tensor.shape[-1] == tensor.shape[-2]
