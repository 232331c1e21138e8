"""Rows whose norms are comparable from step to step."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from probe.core.hindsight.excursions import Array

GRADIENTS = "actv_grad", "grad_unreduced", "grad_reduced"
FLOORS = {"param_origin": 0.02, "actv": 0.05} | dict.fromkeys(GRADIENTS, 0.25)
"""Least spreads of the logarithms of norms, by signal: those in which a cause is sought. Parameters after an update are
those before the next, and optimizer state follows from gradients."""
FEWEST_ELEMENTS = 16
"""Elements below which a norm changes by mere chance."""
ROUNDING = 1e-3
"""Root mean square of a gradient, over the median of all gradients of its signal, below which it is little but
rounding."""


def logs_of(signal: str, norms: Array, sizes: npt.NDArray[np.int64]) -> Array:
    """Return the logarithms of the norms of one signal in one step; NaN where they are not comparable."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.where(np.isfinite(norms) & (norms > 0) & (sizes >= FEWEST_ELEMENTS), np.log(norms), np.nan)
        means = logs - np.log(np.maximum(sizes, 1)) / 2
    if signal in GRADIENTS and np.isfinite(means).any():
        logs[means < np.nanmedian(means) + np.log(ROUNDING)] = np.nan
    return logs
