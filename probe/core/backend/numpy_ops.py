"""Core's array operations on NumPy arrays: for tensors in host memory that NumPy can read."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

BLOCK = 1 << 20
"""Elements: 4 MiB, which a core's cache holds."""


def block(_: Array) -> int:
    """The same everywhere."""
    return BLOCK


def quiet() -> AbstractContextManager[object]:
    """A context without warnings: NaN and Inf are results like others. NumPy records no gradients."""
    return np.errstate(all="ignore")


def member(module: Any, name: str) -> object:
    """An attribute; a property may raise whatever its author thought of."""
    try:
        return getattr(module, name, None)
    except Exception:  # noqa: BLE001 - then it is not there now
        return None


def numbers(tensor: Array) -> Array:
    """The array."""
    return tensor


def wide(x: Array) -> Array:
    """In float32 at least: NumPy's own products of half precision are slow and coarse."""
    return x if x.dtype in (np.float64, np.float32) else x.astype(np.float32)


def on_host(_: Array) -> bool:
    """Always."""
    return True


def is_floating(x: Array) -> bool:
    """By dtype; NumPy has no name for bfloat16."""
    return bool(x.dtype.kind not in "biuc")


def like(array: npt.NDArray[np.float64], x: Array) -> Array:
    """A copy."""
    return array.astype(x.dtype)


def zeros(shape: tuple[int, ...], x: Array) -> Array:
    """As :func:`like`."""
    return np.zeros(shape, x.dtype)


def positions(count: int, _: Array) -> Array:
    """Integers."""
    return np.arange(count)


def turned(x: Array) -> Array:
    """A view."""
    return np.swapaxes(x, -1, -2)


def ordered(x: Array, axes: tuple[int, ...]) -> Array:
    """A view."""
    return np.transpose(x, axes)


def largest(x: Array) -> Array:
    """NumPy's maximum is NaN where one is."""
    greatest: Array = np.max(x, axis=-1, keepdims=True)
    return greatest


def magnitude(x: Array) -> Array:
    """Without sign."""
    return np.abs(x)


def exp(x: Array) -> Array:
    """Of each element."""
    return np.exp(x)


def log(x: Array) -> Array:
    """Of each element."""
    return np.log(x)


def root(x: Array) -> Array:
    """Of each element."""
    return np.sqrt(x)


def where(condition: Array, value: float, other: Array) -> Array:
    """Of the dtype of ``other``."""
    return np.where(condition, other.dtype.type(value), other)


def counts(x: Array, largest: int, above: float) -> Array:
    """By partial sorting."""
    places = np.argpartition(-x, largest - 1, axis=1)[:, :largest]
    chosen = places[np.take_along_axis(x, places, axis=1) > above]
    return np.bincount(chosen, minlength=x.shape[1])


def column(scalars: Sequence[Array]) -> npt.NDArray[np.float64]:
    """An array."""
    joined: npt.NDArray[np.float64] = np.concatenate([np.asarray(x, np.float64).reshape(-1) for x in scalars])
    return joined[:, None]
