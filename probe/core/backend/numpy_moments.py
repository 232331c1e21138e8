"""Moments of NumPy arrays of any real or complex dtype and any strides.

Small arrays, in any number, are concatenated and reduced together in float64. Larger ones are reduced in float32, in
blocks that stay in the cache, and again in float64 only if values exceeded the range of float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from probe.core.backend import fused_reduce
from probe.core.backend.protocols import Adam
from probe.core.histogram import BINS, HISTOGRAM, ZERO, counts
from probe.core.moments import repeated

Array = npt.NDArray[np.float64]
Floats = npt.NDArray[np.float32] | Array

SMALL = 4096
"""Elements of the largest arrays that are concatenated."""
BLOCK = 1 << 16
"""Elements reduced at a time: few enough to stay in the cache from one reduction to the next."""
RUN = 1 << 13
"""Elements whose squares are added up in float32: rounding grows with their number (1e-6 of the norm here), and above
10,000 OpenBLAS uses several threads, which then spin beside those of training."""
SQUARES_TOO_SMALL = 1e-31
"""Mean square below which squares in float32 have lost digits (the smallest normal float32 is 1.2e-38)."""


class Elements(NamedTuple):
    """The elements of one tensor."""

    size: int
    """Number of elements in all pieces."""
    pieces: Callable[[], Iterable[npt.NDArray[Any]]]
    """Function that returns arrays that together hold each element once; flat ones of a bounded size, unless ``size``
    is small. Each is reduced by itself."""
    times: int = 1
    """Number of times that each element occurs."""
    absent: int = 0
    """Number of further elements, all of them 0."""


def moments(arrays: Sequence[npt.NDArray[Any]], columns: Sequence[str], eps: float) -> Array:
    """Return ``len(arrays) x len(columns)`` float64 moments of non-empty arrays. For names and meanings of the columns
    see :data:`probe.core.moments.MOMENTS`; a histogram, ``BINS`` numbers wide, comes last."""
    return of_elements([Elements(array.size, partial(_pieces, array)) for array in arrays], columns, eps)


def of_elements(tensors: Sequence[Elements], columns: Sequence[str], eps: float) -> Array:
    """Return the moments of tensors, as :func:`moments` does."""
    with np.errstate(all="ignore"):
        if HISTOGRAM not in columns:
            return _rows(tensors, columns, eps)
        assert columns[-1] == HISTOGRAM
        return np.concatenate([_rows(tensors, columns[:-1], eps), np.stack([*map(_counts, tensors)])], axis=1)


def _rows(tensors: Sequence[Elements], columns: Sequence[str], eps: float) -> Array:
    rows = np.empty((len(tensors), len(columns)))
    if not columns:
        return rows
    small = [i for i, one in enumerate(tensors) if one.size <= SMALL and one.times == 1 and not one.absent]
    if small:
        pieces = [as_float(piece).reshape(-1) for i in small for piece in tensors[i].pieces()]
        rows[small] = together(np.concatenate(pieces), [tensors[i].size for i in small], columns, eps)
    for i in set(range(len(tensors))).difference(small):
        rows[i] = _one(tensors[i], columns, eps)
    return rows


def _counts(tensor: Elements) -> Array:
    """Return the histogram of one tensor."""
    row: Array = tensor.times * sum((counts(as_float(piece)) for piece in tensor.pieces()), np.zeros(BINS))
    row[ZERO] += tensor.absent
    return row


def agreement(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> np.float64:
    """Return the fraction of equal signs in two arrays of one shape; a pair with a zero or NaN counts one half.

    Raises:
        ValueError: if the shapes differ.
    """
    if one.shape != other.shape:
        raise ValueError(f"expected two tensors of one shape, got {list(one.shape)} and {list(other.shape)}")
    equal = np.count_nonzero(((one > 0) & (other > 0)) | ((one < 0) & (other < 0)))
    opposite = np.count_nonzero(((one > 0) & (other < 0)) | ((one < 0) & (other > 0)))
    return np.float64(0.5 + (equal - opposite) / (2 * one.size))


def update_and_ratio(first: npt.NDArray[Any], second: npt.NDArray[Any], about: Adam) -> tuple[Floats, Floats]:
    """Return Adam's update and ratio of two moments: see :meth:`probe.core.backend.protocols.Tensors.adam`."""
    with np.errstate(all="ignore"):
        m, v = as_float(first), as_float(second)
        kind = m.dtype.type
        rest = 1 - about.beta2**about.steps
        mean, root = m / kind(1 - about.beta1**about.steps), np.sqrt(v / kind(rest))
        eps = about.eps / math.sqrt(rest) if about.early else about.eps
        return mean / (root + kind(eps)), np.where(m == 0, kind(0), mean / root)


def together(flat: Floats, counts: Sequence[int], columns: Sequence[str], eps: float) -> Array:
    """Return moments of many arrays in one float64 pass over their concatenation. ``counts`` are their nonzero
    lengths."""
    lengths = np.array(counts)
    starts = np.cumsum(lengths) - lengths
    flat = flat.astype(np.float64, copy=False)
    with np.errstate(all="ignore"):
        return np.stack([_column(name, flat, starts, lengths, eps) for name in columns], axis=1)


def _column(name: str, flat: Array, starts: npt.NDArray[np.int64], counts: npt.NDArray[np.int64], eps: float) -> Array:
    if name == "min":
        return np.minimum.reduceat(flat, starts)
    if name == "max":
        return np.maximum.reduceat(flat, starts)
    if name == "m2":
        means = np.add.reduceat(flat, starts) / counts
        flat = np.square(flat - np.repeat(means, counts))
    elif name == "sumsq":
        flat = np.square(flat)
    elif name != "sum":
        marked = np.isnan(flat) if name == "nans" else np.isinf(flat) if name == "infs" else np.abs(flat) < eps
        if not marked.any():
            return np.zeros(len(counts))
        flat = marked.astype(np.float64)
    return np.add.reduceat(flat, starts)


_READY = (np.dtype(np.float32), np.dtype(np.float64))


def as_float(array: npt.NDArray[Any]) -> Floats:
    """Return the same numbers in float32 or float64: magnitudes of complex ones, 0 and 1 for bool."""
    dtype = array.dtype
    if dtype in _READY:
        return array
    if dtype.kind == "c":
        return as_float(np.abs(array))
    if dtype.name == "bfloat16":  # the upper half of a float32; twenty times as fast as its own conversion
        return np.left_shift(array.view(np.uint16), 16, dtype=np.uint32).view(np.float32)
    if dtype.kind in "iu" or (dtype.kind == "f" and dtype.itemsize > np.float32().itemsize):
        return array.astype(np.float64)
    return array.astype(np.float32)


def _one(tensor: Elements, columns: Sequence[str], eps: float) -> Array:
    """Return moments of one tensor of any size, merged from those of its pieces."""
    table = [_reduced(piece, columns, eps) for piece in tensor.pieces()]
    if tensor.absent:
        below = float(tensor.absent if eps > 0 else 0)
        table.append([*(below if name == "below" else 0.0 for name in columns), 0.0, float(tensor.absent)])
    *values, means, counts = np.array(table).T
    row = values if len(table) == 1 else map(_merged, columns, values, repeat(means), repeat(counts))
    moments = dict(zip(columns, row, strict=True))
    return np.array([*(moments if tensor.times == 1 else repeated(moments, tensor.times)).values()]).reshape(-1)


def _merged(name: str, values: Array, means: Array, counts: Array) -> float:
    """Return one moment, merged from all blocks as :func:`probe.core.moments.merge` does."""
    if name == "min":
        return float(np.minimum.reduce(values))
    if name == "max":
        return float(np.maximum.reduce(values))
    total = float(np.add.reduce(values))
    if name == "m2":
        apart = means - np.dot(means, counts) / np.add.reduce(counts)
        total += float(np.dot(apart * apart, counts))
    return total


def _pieces(array: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    """Yield a small array, or flat contiguous blocks that together hold every element once. Elements that do not lie
    side by side are copied, each block over the last."""
    if array.size <= SMALL:
        yield array
        return
    contiguous: Any = ["readonly", "contig", "aligned"]  # NumPy 1.26 misspells one of them in its type hints
    blocks: Any = np.nditer(array, ["external_loop", "buffered"], [contiguous], order="K", buffersize=BLOCK)
    yield from blocks


def _reduced(array: npt.NDArray[Any], columns: Sequence[str], eps: float) -> list[float]:
    """Return moments of a block, then its mean and its length."""
    x = as_float(array)
    if (row := _in_one_pass(x, (*columns, "mean"), eps)) is not None:
        return [*row, float(x.size)]
    block = _Block(x, eps)
    return [*[_REDUCE[name](block) for name in columns], block.mean, float(x.size)]


def _in_one_pass(x: Floats, columns: tuple[str, ...], eps: float) -> list[float] | None:
    """Return the row of the compiled pass; None if that is impossible."""
    if x.dtype != np.float32 or not x.flags.c_contiguous:
        return None
    return fused_reduce.one(columns, x.__array_interface__["data"][0], x.size, eps)


class _Block:
    """Block of elements, with its counts of NaN and Inf: elements are examined only if their sum is not finite."""

    __slots__ = ("eps", "infs", "mean", "nans", "total", "x")

    def __init__(self, x: Floats, eps: float) -> None:
        self.x, self.eps, self.total = x, eps, float(np.add.reduce(x))
        self.nans = self.infs = 0.0
        if not math.isfinite(self.total):
            self.nans = float(np.count_nonzero(np.isnan(x)))
            self.infs = float(np.count_nonzero(np.isinf(x))) if self.nans < x.size else 0.0
            self.total = math.nan if self.nans else _sum(x)
        self.mean = self.total / x.size


def _sum(x: Floats) -> float:
    """Return the sum, computed in float64 if it exceeds the range of float32."""
    total = float(np.add.reduce(x))
    return total if math.isfinite(total) else float(np.add.reduce(x, dtype=np.float64))


def _squares(block: _Block) -> float:
    if block.nans:
        return math.nan
    return math.inf if block.infs else _sum_of_squares(block.x)


def _sum_of_squares(x: Floats) -> float:
    """Return the sum of squares, computed in float64 if squares leave the range of float32."""
    whole = x.size - x.size % RUN
    runs = x[:whole].reshape(-1, RUN)
    squares = float(sum(np.matmul(runs[:, np.newaxis], runs[..., np.newaxis]).ravel().tolist()))
    squares += float(np.dot(x[whole:], x[whole:]))
    if x.dtype == np.float32 and not SQUARES_TOO_SMALL * x.size < squares < math.inf:
        return _sum_of_squares(x.astype(np.float64))
    return squares


def _deviations(block: _Block) -> float:
    """Return the sum of squared deviations from the mean: squares of ``x - c`` for any ``c`` near the mean, corrected
    for ``c`` (the shifted-data algorithm: Chan, Golub and LeVeque, 1983). Also make the block's mean more exact."""
    if block.nans or block.infs:
        return math.nan
    x = block.x
    centre = x.dtype.type(block.mean)
    shifted = x - centre
    off = _sum(shifted) / x.size
    block.mean = float(centre) + off
    return max(_sum_of_squares(shifted) - x.size * off * off, 0.0)


_REDUCE: dict[str, Callable[[_Block], float]] = {
    "min": lambda block: math.nan if block.nans else float(np.minimum.reduce(block.x)),
    "max": lambda block: math.nan if block.nans else float(np.maximum.reduce(block.x)),
    "sum": lambda block: block.total,
    "sumsq": _squares,
    "m2": _deviations,
    "nans": lambda block: block.nans,
    "infs": lambda block: block.infs,
    "below": lambda block: float(np.count_nonzero(np.abs(block.x) < block.eps)),
}
