"""Losses of the framework, as their calls or the graph of a loss show them."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

Form = Literal["probabilities", "log-probabilities", "sigmoid", "numbers"]
"""Form of the scores that a loss gets: rows that are not negative and sum to 1, their logarithms, what a sigmoid has
returned, or any numbers."""
Relation = Literal["next", "same", "second", "other"]
"""Relation of the labels of a loss to the tokens that the model got: the next token each, the same one, the one after
the next, or none of these."""


class LossCall(NamedTuple):
    """Call of a loss function of the framework, whose result requires a gradient, or its trace in the graph of a loss,
    which shows neither its update, reduction and value nor the digest of its labels."""

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
    padded: float = 0.0
    """Share of the labels that count, are the padding of the embedding and follow on another such label."""


class LossGraph(NamedTuple):
    """Facts of the graph of a loss whose backward has not begun."""

    losses: tuple[LossCall, ...]
    least_ahead: float = math.nan
    """Weight with which the attention of a position with a label reads the next position, at most, of the layer in
    which that is least; NaN if no layer shows it, or several sequences of tokens are read."""
    most_ahead: float = math.nan
    """The same of the layer in which it is greatest."""
