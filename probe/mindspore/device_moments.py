"""Moments of tensors on a device, by MindSpore's own operators and without a wait.

None of this has run on a device yet, neither an NPU nor a GPU: it is checked on MindSpore's CPU backend alone.

A device computes in float32. Moments can leave its range: the squares of 1e25 and of 1e-25 both do. So elements are
divided by the largest magnitude among them, and a moment is kept as three float32 factors, multiplied on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import mindspore
import numpy as np
import numpy.typing as npt
from mindspore import ops

from probe.core.backend.protocols import Adam
from probe.core.histogram import BINS, HISTOGRAM, INFINITE, LOWER, NAN, ZERO
from probe.mindspore.private_api import no_grad

Array = npt.NDArray[np.float64]
Tensor = Any


class _Elements(NamedTuple):
    """The elements of one tensor, flat and in float32, with intermediate results that several moments share."""

    x: Tensor
    size: Tensor
    """Magnitudes."""
    scaled: Tensor
    """Elements divided by the scale."""
    nan: Tensor
    """True for each element that is NaN."""
    eps: Any


def moments(tensors: Sequence[Tensor], columns: Sequence[str], eps: Any) -> Tensor:
    """Return ``len(tensors) x len(columns) x 3`` float32 factors of the moments of non-empty tensors; a histogram,
    ``BINS`` wide, comes last."""
    with no_grad():
        plain = [name for name in columns if name != HISTOGRAM]
        rows = [ops.stack([_row(tensor, plain, eps) for tensor in tensors])] if plain else []
        if HISTOGRAM in columns:
            rows.append(ops.stack([_histogram(tensor) for tensor in tensors]))
        return ops.cat(rows, 1) if len(rows) > 1 else rows[0]


def to_host(blocks: Sequence[Any]) -> Callable[[], Array]:
    """Begin to join the device blocks. The returned function waits for them, and returns the rows of all blocks, arrays
    included, in order."""
    with no_grad():
        on_device = [block for block in blocks if not isinstance(block, np.ndarray)]
        joined = ops.cat(on_device) if on_device else None

    def wait() -> Array:
        if joined is None:
            return np.concatenate(blocks) if blocks else np.empty((0, 0))
        rows = np.prod(joined.asnumpy().astype(np.float64), axis=2)
        arrived = iter(np.split(rows, np.cumsum([len(block) for block in on_device])))
        return np.concatenate([block if isinstance(block, np.ndarray) else next(arrived) for block in blocks])

    return wait


def _row(tensor: Tensor, columns: Sequence[str], eps: Any) -> Tensor:
    x = _as_float(tensor).reshape(-1)
    size = ops.abs(x)
    scale = _largest(size)
    elements = _Elements(x, size, x / scale, ops.isnan(x), eps)
    return ops.stack([_factors(_COLUMNS[name](elements), scale, _POWERS.get(name, 0)) for name in columns])


def _histogram(tensor: Tensor) -> Tensor:
    """Return ``BINS x 3`` factors of the counts: see :mod:`probe.core.histogram`."""
    x = _as_float(tensor).reshape(-1)
    edges = mindspore.Tensor(LOWER[2:-1].astype(np.float32))
    distance = ops.searchsorted(edges, ops.abs(x), out_int32=True, right=True) + 1
    distance = ops.where(ops.abs(x) == np.inf, ops.full_like(distance, INFINITE), distance)
    distance = ops.where(x == 0, ops.zeros_like(distance), distance)
    at = ops.where(x < 0, ZERO - distance, ZERO + distance)
    at = ops.where(ops.isnan(x), ops.full_like(at, NAN), at)
    counted = ops.unsorted_segment_sum(ops.ones_like(at), at, BINS).astype(mindspore.float32)
    one = ops.ones_like(counted)
    return ops.stack([counted, one, one], 1)


def _largest(size: Tensor) -> Tensor:
    """Return the largest finite magnitude; 1 if that is 0."""
    largest = ops.where(size < np.inf, size, ops.zeros_like(size)).max()
    return ops.where(largest > 0, largest, ops.ones_like(largest))


def _factors(value: Tensor, scale: Tensor, power: int) -> Tensor:
    one = ops.ones_like(scale)
    return ops.stack([value, scale if power > 0 else one, scale if power > 1 else one])


def _as_float(tensor: Tensor) -> Tensor:
    """Convert to float32: complex as magnitudes, bool as 0 and 1. Larger types lose digits, float64 its range."""
    if tensor.dtype in (mindspore.complex64, mindspore.complex128):
        tensor = ops.abs(tensor)
    return tensor.astype(mindspore.float32)


def agreement(one: Tensor, other: Tensor) -> Tensor:
    """Return the fraction of elements that have the same sign, 0-d float32; a pair with a zero or NaN counts one half.

    Raises:
        ValueError: if the shapes differ.
    """
    if one.shape != other.shape:
        raise ValueError(f"expected two tensors of one shape, got {list(one.shape)} and {list(other.shape)}")
    with no_grad():
        up, down = ops.logical_and(one > 0, other > 0), ops.logical_and(one < 0, other < 0)
        rise, fall = ops.logical_and(one > 0, other < 0), ops.logical_and(one < 0, other > 0)
        return (_count(up) + _count(down) - _count(rise) - _count(fall)) / (2 * one.size) + 0.5


def adam(first: Tensor, second: Tensor, settings: Adam) -> tuple[Tensor, Tensor]:
    """Return update and ratio of two moments, in float32."""
    with no_grad():
        steps = (
            settings.steps.astype(mindspore.float32) if isinstance(settings.steps, mindspore.Tensor) else settings.steps
        )
        m, v = first.astype(mindspore.float32), second.astype(mindspore.float32)
        rest = 1 - settings.beta2**steps
        mean, root = m / (1 - settings.beta1**steps), ops.sqrt(v / rest)
        eps = settings.eps / rest**0.5 if settings.early else settings.eps
        return mean / (root + eps), ops.where(m == 0, ops.zeros_like(m), mean / root)


def _count(marked: Tensor) -> Tensor:
    return marked.astype(mindspore.int32).sum().astype(mindspore.float32)


def _extreme(elements: _Elements, lowest: bool) -> Tensor:
    """Return the least or greatest element; NaN if any is, which MindSpore's own may miss (on the CPU: 2.10.0)."""
    extreme = elements.x.min() if lowest else elements.x.max()
    return ops.where(elements.nan.any(), ops.full_like(extreme, np.nan), extreme)


def _deviations(elements: _Elements) -> Tensor:
    """Return the sum of squares of ``x - c`` for a ``c`` near the mean, corrected for ``c``: see ``numpy_moments``."""
    count = elements.x.shape[0]
    shifted = elements.scaled - elements.scaled.sum() / count
    off = shifted.sum() / count
    squares = (shifted * shifted).sum() - count * off * off
    return ops.where(squares < 0, ops.zeros_like(squares), squares)


_COLUMNS: dict[str, Callable[[_Elements], Tensor]] = {
    "min": lambda elements: _extreme(elements, lowest=True),
    "max": lambda elements: _extreme(elements, lowest=False),
    "sum": lambda elements: elements.scaled.sum(),
    "sumsq": lambda elements: (elements.scaled * elements.scaled).sum(),
    "m2": _deviations,
    "nans": lambda elements: _count(elements.nan),
    "infs": lambda elements: _count(elements.size == np.inf),
    "below": lambda elements: _count(elements.size < elements.eps),
}
_POWERS = {"sum": 1, "sumsq": 2, "m2": 2}
"""Power of the scale in a moment."""
