"""Size that an update should have, from rates and gradients: what decides whether a parameter should move."""

from __future__ import annotations

import numpy as np

from probe.core.checks.update_facts import Array, UpdateFacts

ROUNDING = 1e-3
"""Share of the median root mean square of all gradients below which one may be made of rounding alone, such as that of
a bias before a normalisation, or of a key's bias in attention."""
SMALLEST = 1e-7
"""Root mean square of a gradient below which the epsilon of Adam and its like makes updates small."""


def rates_of(facts: UpdateFacts) -> Array:
    """Return the learning rate of each parameter; the least of all groups for each if its group is not known. NaN where
    the rate is not known."""
    rates, number = np.array(facts.rates, dtype=np.float64), len(facts.names)
    if len(facts.groups) == number and number:
        return np.take(rates, facts.groups)
    return np.full(number, rates.min() if len(rates) else np.nan)


def step_sizes(facts: UpdateFacts, norms: Array) -> Array:
    """Return for each parameter about how much the update should change one of its elements; 0 where there is no
    gradient, or one that may be made of rounding alone, and where the rate is not known.

    Optimizers that count steps normalise gradients, so that their rate is the size; others multiply it with the
    gradient.
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
    steps = np.where(rms >= SMALLEST, rates, 0.0) if facts.state_steps is not None else rates * rms * clip
    steps[rms < ROUNDING * np.median(rms[has])] = 0.0
    return steps
