"""Losses of the framework, as their calls or the graph of a loss show them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from operator import mul
from typing import Literal, NamedTuple

Form = Literal["probabilities", "log-probabilities", "sigmoid", "rectified", "dropped", "numbers"]
"""Form of the scores that a loss gets: rows that are not negative and sum to 1, their logarithms, what a sigmoid, a
rectifier or dropout has returned, or any numbers."""
Relation = Literal["next", "same", "second", "other"]
"""Relation of the labels of a loss to the tokens that the model got: the next token each, the same one, the one after
the next, or none of these."""

PRIME = 16_777_213
"""Largest prime of 24 bits, below which digests of labels are."""
READ = 1e-6
"""Least weight of attention that is no rounding."""
KEPT = 3
"""Least size of an axis by which it is known again."""


def exchanges(before: Sequence[int], after: Sequence[int]) -> bool:
    """Return whether a view from one shape to another takes an axis for another one: a view may split and merge axes,
    and moves none. Axes that are neither split nor merged are known again by their size; where splitting and merging
    would explain all, as of ``(batch, heads * width)`` and ``(batch * heads, width)``, only heads that are split or
    merged count."""
    sources, targets = ([size for size in reversed(shape) if size > 1] for shape in (before, after))
    if math.prod(sources) != math.prod(targets):
        return False
    first = True
    while sources and targets:
        old, new = [sources.pop()], [targets.pop()]
        while (difference := math.prod(old) - math.prod(new)) != 0:
            (old if difference < 0 else new).append((sources if difference < 0 else targets).pop())
        moves = len(old) > 1 < len(new) and any(size >= KEPT and size in new for size in old)
        if moves and not (_is_explained(old, new) and not _is_of_heads(old, new, first)):
            return True
        first = False
    return False


def _is_explained(old: Sequence[int], new: Sequence[int]) -> bool:
    """Return whether axes of ``old`` can be split, and the parts of neighbours merged, so that ``new`` results."""
    ends = sorted({*accumulate(old, mul), *accumulate(new, mul)})
    return all(after % before == 0 for before, after in pairwise(ends))


def _is_of_heads(old: Sequence[int], new: Sequence[int], first: bool) -> bool:
    """Return whether a view splits or merges heads: ``(tokens, width)`` and ``(heads, tokens, part)``, also with the
    batch before the tokens and the heads in one."""
    sizes = len(old), len(new)
    if sizes == (2, 3):
        return new[1] == old[0]
    if sizes == (3, 2):
        return new[0] == old[1] and not first
    return sizes == (3, 3) and new[1] == old[1] and new[0] % old[0] == 0


class LossCall(NamedTuple):
    """Call of a loss function of the framework, whose result requires a gradient, or its trace in the graph of a loss,
    which shows neither its update, reduction nor value."""

    update: int
    """Updates before it."""
    function: str
    """Name of the function, such as ``cross_entropy``."""
    reduction: str
    """``mean``, ``sum`` or ``none``."""
    form: Form
    classes: int
    """Number of classes; 0 if the labels are no classes."""
    rows: int
    """Number of labels, ignored ones among them."""
    ignored: float
    """Share of labels that are ignored."""
    value: float
    """The loss; NaN if it has several elements."""
    relation: Relation
    labels: int
    """Digest of the labels."""
    broadcast: bool = False
    """True if scores and labels have other shapes, and are compared in more pairs than either has numbers."""
    spread: float = math.inf
    """Greatest label less the least of labels that are sorted; Inf of others, of few, and if they are not known."""
    padded: float = 0.0
    """Share of the labels that count, are padding and follow on another such label."""
    weights: tuple[tuple[float, float], ...] = ()
    """Weight of each class and the number of its labels; empty if the loss has no such weights, or many classes."""
    exchanged: bool = False
    """True if what stands for the labels has a gradient, and what stands for the scores has none."""


def traced(function: str, form: Form, rows: int, classes: int = 0) -> LossCall:
    """Return a loss of which a graph shows no more."""
    return LossCall(0, function, "", form, classes, rows, 0.0, math.nan, "other", 0)


def is_crossed(difference: Sequence[int], operands: Sequence[Sequence[int]]) -> bool:
    """Return whether a difference compares N scores, of shape (N, 1) or (N,), with N numbers of the other shape.

    Args:
        operands: shapes of those that have a gradient.
    """
    if len(difference) != 2 or difference[0] != difference[1] or difference[0] < 2 or len(operands) != 1:
        return False
    return tuple(operands[0]) in ((difference[0], 1), (difference[0],))


class Regrouped(NamedTuple):
    """View or reshape that takes numbers of one axis for those of another."""

    before: tuple[int, ...]
    """Shape of what it gets."""
    after: tuple[int, ...]
    place: str
    """Name of the parameter that is nearest before it; empty if none is."""


class Crossing(NamedTuple):
    """Layer that mixes the samples of a batch, as its sequence."""

    samples: int
    rows: int
    """Sequences that it takes the batch for."""
    place: str
    """Name of the parameter that is nearest before it; empty if none is."""


class LossGraph(NamedTuple):
    """Facts of the graph of a loss whose backward has not begun."""

    losses: tuple[LossCall, ...]
    least_ahead: float = math.nan
    """Weight with which the attention of a position with a label reads the next position, at most, of the layer in
    which that is least; NaN if no layer shows it, or several sequences of tokens are read."""
    most_ahead: float = math.nan
    """The same of the layer in which it is greatest."""
    regrouped: Regrouped | None = None
    """The first view that exchanges axes, if any does."""
    crossing: Crossing | None = None
    """The first layer of attention or recurrence, if each takes the samples for a sequence."""
    inverted: str | None = None
    """Name of the parameter that is nearest before attention that reads only what is one and the same token, of several
    in each sequence, and hides all others; None if none does."""
    off_axis: str | None = None
    """The same of attention whose weights have a sum of 1 over samples or heads; None if none has."""
    negated: str = ""
    """Name of the loss whose negative is the root; empty if that is something else."""
    in_order: Callable[[], bool] = bool
    """Function that returns whether the loader whose batches are taken now reads its samples in their order."""
    factor: float = math.nan
    """Factor by which the root is a mean loss of the framework; NaN if it is something else."""
    any_causal: bool = False
    """True if the attention of a layer reads no next position, also where several sequences of tokens are read."""
    foreign: tuple[Callable[[], object], ...] = ()
    """Functions that return the parameters, as long as they exist, that no watched model and no optimizer has."""
    moving_goal: bool = False
    """True if a distance between a chosen score and the best of others has a gradient on both sides, or one between a
    value and a reward with a part of a later value."""
    one_row: tuple[str, ...] = ()
    """Names of the tables of which one row is looked up at all places of all samples."""
    constant: tuple[float, float] = 0.0, 0.0
    """Part of the root that has no gradient, and the root; 0 in both if that is not known."""
    dropped: tuple[float, float] | None = None
    """Two numbers by which the mask of a dropout is known again; None if there is no dropout."""
    padding_read: str | None = None
    """Name of the parameter that is nearest before attention, or a mean over positions, in which what is no padding
    reads padding, in each layer; None if none does."""
    batch: tuple[int, int, int] | None = None
    """Address and version of the memory of which the inputs are a small part, and where they begin in it; None if they
    have a memory of their own."""
    tokens: bool = False
    """True if a table of embeddings was looked up."""
    one_sample: str | None = None
    """Name of the parameter that is nearest before a batch norm in training that gets one sample; None if none does."""
    pixels: str | None = None
    """Name of the parameter that is nearest before a convolution of whole numbers from 0 to 255, behind which there is
    no norm; None if none is."""
    size: int = 0
    """Number of operations; 0 if it is not known."""
    streams: bool = False
    """True if several workers read an iterable data set, each its own copy."""
