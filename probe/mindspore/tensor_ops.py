"""Core's array operations for MindSpore: NumPy on the tensors' elements.

On a host the elements are read in place. On a device they are copied, which waits for the device: only in sampled steps
and for the modules that ``l2_targets`` names.
"""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from probe.core.backend.numpy_ops import (
    block,
    column,
    counts,
    exp,
    is_floating,
    largest,
    like,
    log,
    magnitude,
    member,
    on_host,
    ordered,
    positions,
    quiet,
    root,
    turned,
    where,
    wide,
    zeros,
)
from probe.mindspore.tensors import read

__all__ = [
    "block",
    "column",
    "counts",
    "exp",
    "is_floating",
    "largest",
    "like",
    "log",
    "magnitude",
    "member",
    "numbers",
    "on_host",
    "ordered",
    "positions",
    "quiet",
    "root",
    "turned",
    "where",
    "wide",
    "zeros",
]


def numbers(tensor: Any) -> npt.NDArray[Any]:
    """Return the stored elements."""
    return read(tensor)
