"""Size that an update should have, from rates and gradients: what decides whether a parameter should move."""

from __future__ import annotations

from math import isfinite

import numpy as np

from probe.core.checks.update_facts import Array, UpdateFacts, is_all

ROUNDING = 1e-3
"""Share of the median root mean square of all gradients below which one may be made of rounding alone, such as that of
a bias before a normalisation, or of a key's bias in attention."""
SMALLEST = 1e-7
"""Root mean square of a gradient below which the epsilon of Adam and its like makes updates small."""
MEMORY = 0.999
"""Part of the mean square of a gradient that an update leaves: the default of Adam and its like."""


class GradientMemory:
    """Mean square of each gradient over about the latest thousand updates, by which Adam and its like divide.

    Args:
        number: number of parameters.
    """

    def __init__(self, number: int) -> None:
        self._squares, self._weight = np.zeros(number), 0.0

    def add(self, facts: UpdateFacts, norms: Array) -> None:
        """Add the gradients of an update, as they were clipped."""
        clipped = norms * (facts.clip if 0 < facts.clip < 1 else 1.0)
        squares = clipped * clipped
        if not is_all(facts.gradients.there) or not isfinite(squares.sum()):
            squares = np.where(np.isfinite(squares), squares, 0.0)
        self._squares *= MEMORY
        self._squares += squares
        self._weight = MEMORY * self._weight + 1.0

    def shares(self, facts: UpdateFacts, norms: Array) -> Array:
        """Return the norm of each gradient, as it was clipped, relative to the root of the mean square; at most 1."""
        clip = facts.clip if 0 < facts.clip < 1 else 1.0
        usual = np.sqrt(self._squares / max(self._weight, 1.0))
        shares: Array = np.minimum(clip * np.nan_to_num(norms) / np.maximum(usual, np.finfo(np.float64).tiny), 1.0)
        return shares


def rates_of(facts: UpdateFacts) -> Array:
    """Return the learning rate of each parameter; the least of all groups for each if its group is not known. NaN where
    the rate is not known."""
    rates, number = np.array(facts.rates, dtype=np.float64), len(facts.names)
    if len(facts.groups) == number and number:
        return np.take(rates, facts.groups)
    return np.full(number, rates.min() if len(rates) else np.nan)


def step_sizes(facts: UpdateFacts, norms: Array, memory: GradientMemory | None = None) -> Array:
    """Return for each parameter about how much the update should change one of its elements; 0 where there is no
    gradient, or one that may be made of rounding alone, and where the rate is not known.

    Optimizers that count steps normalise gradients, so that their rate is the size, or less of it where the gradient
    has become small beside those that ``memory`` holds; others multiply it with the gradient.
    """
    size = np.array(facts.sizes, dtype=np.float64)
    has = facts.gradients.there & np.isfinite(norms) & (norms > 0)
    if len(size) == len(norms):
        rms = np.where(has, norms / np.sqrt(np.maximum(size, 1)), 0.0)
    else:  # at least: no tensor has more than a million elements of the size of its norm
        rms = np.where(has, norms * 1e-3, 0.0)
    if not has.any():
        return np.zeros(len(norms))
    rates = np.nan_to_num(rates_of(facts))
    clip = facts.clip if 0 < facts.clip < 1 else 1.0
    if facts.state_steps is None:
        steps: Array = rates * rms * clip
    else:
        steps = np.where(rms >= SMALLEST, rates if memory is None else rates * memory.shares(facts, norms), 0.0)
    steps[rms < ROUNDING * np.median(rms[has])] = 0.0
    return steps
