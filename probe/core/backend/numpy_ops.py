"""Array operations of core on NumPy arrays, for tensors in host memory that NumPy can read."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

BLOCK = 1 << 20
"""Elements of a block: 4 MiB, which fit into the cache of a processor core."""


def block(_: Array) -> int:
    """Return the same number for every array."""
    return BLOCK


def quiet() -> AbstractContextManager[object]:
    """Return a context without warnings, since NaN and Inf are results like others. NumPy records no gradients."""
    return np.errstate(all="ignore")


def member(module: Any, name: str) -> object:
    """Return an attribute; None if it is missing, or is a property that raises."""
    try:
        return getattr(module, name, None)
    except Exception:  # noqa: BLE001 - then it is not there now
        return None


def wide(x: Array) -> Array:
    """Convert to float32 at least: NumPy's own products of half precision are slow and coarse."""
    return x if x.dtype in (np.float64, np.float32) else x.astype(np.float32)


def on_host(_: Array) -> bool:
    """Return True."""
    return True


def is_floating(x: Array) -> bool:
    """Return whether the dtype is floating; NumPy has no name for bfloat16."""
    return bool(x.dtype.kind not in "biuc")


def like(array: npt.NDArray[np.float64], x: Array) -> Array:
    """Return a copy of ``array`` with the dtype of ``x``."""
    return array.astype(x.dtype)


def zeros(shape: tuple[int, ...], x: Array) -> Array:
    """Return zeros with the dtype of ``x``."""
    return np.zeros(shape, x.dtype)


def positions(count: int, _: Array) -> Array:
    """Return integers."""
    return np.arange(count)


def turned(x: Array) -> Array:
    """Return a view with the last two dimensions swapped."""
    return np.swapaxes(x, -1, -2)


def largest(x: Array) -> Array:
    """Return the maximum of the last dimension; NaN if one element is NaN."""
    greatest: Array = np.max(x, axis=-1, keepdims=True)
    return greatest


exp, log, root, magnitude, ordered = np.exp, np.log, np.sqrt, np.abs, np.transpose


def where(condition: Array, value: float, other: Array) -> Array:
    """Return an array with the dtype of ``other``."""
    return np.where(condition, other.dtype.type(value), other)


def counts(x: Array, largest: int, above: float) -> Array:
    """Count by partial sorting."""
    places = np.argpartition(-x, largest - 1, axis=1)[:, :largest]
    chosen = places[np.take_along_axis(x, places, axis=1) > above]
    return np.bincount(chosen, minlength=x.shape[1])


def column(scalars: Sequence[Array]) -> npt.NDArray[np.float64]:
    """Return a float64 array with one number a row."""
    joined: npt.NDArray[np.float64] = np.concatenate([np.asarray(x, np.float64).reshape(-1) for x in scalars])
    return joined[:, None]
