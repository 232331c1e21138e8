"""NumPy arrays for the contract of moments."""

from __future__ import annotations

from typing import Any

import numpy as np

from probe.core.backend.numpy_moments import moments as host

__all__ = ["elements", "host", "tensor"]


def tensor(values: Any, dtype: str) -> Any:
    """A copy of ``values``."""
    return values.astype(dtype)


def elements(array: Any) -> Any:
    """Complex numbers, integers and the widest floating point as they are, others in float64."""
    return array.astype(np.float64) if array.dtype.kind == "f" and array.itemsize < 8 else array
