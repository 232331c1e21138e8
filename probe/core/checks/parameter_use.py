"""Use of a parameter in the forward, as the graph of a loss shows it."""

from __future__ import annotations

from typing import NamedTuple


class ParameterUse(NamedTuple):
    """Operation of the forward that used a parameter last."""

    order: int
    """Number of the operation: the backward reaches the highest first."""
    dtype: str
    """Dtype of its result, in the framework's own spelling."""
    dimensions: int
    """Dimensions of the parameter: two or more of a layer's weight."""
