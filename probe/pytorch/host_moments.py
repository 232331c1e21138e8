"""Moments of tensors in host memory.

Small tensors, in any number, are concatenated and reduced by NumPy in float64. Larger ones are reduced in float32 by
torch, or in one compiled pass (:mod:`probe.core.backend.fused_reduce`), in pieces that about fit into the cache, and
again in float64 only if values exceeded the range of float32.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from probe.core.backend import fused_reduce
from probe.core.backend.fused_reduce import SQUARES_TOO_SMALL
from probe.core.backend.numpy_moments import SMALL, together, with_histograms
from probe.core.backend.protocols import HostPlace
from probe.core.histogram import BINS, HISTOGRAM, ZERO, counts
from probe.core.moments import merge, repeated
from probe.pytorch.dtensor import PLAIN, distinct

Array = npt.NDArray[np.float64]
Row = dict[str, float]

PIECE = 1 << 20
"""Elements reduced at a time: bounds the copy of a converted or strided tensor."""
SHORT = 1 << 15
"""Elements up to which one float32 dot product is sufficiently exact (4e-6 of the norm) and cheaper."""
KINDS = {getattr(torch, kind): kind for kind in fused_reduce.KINDS}
"""Dtypes that the compiled pass reads."""
RUN = 1024
"""Elements whose squares are summed in float32: rounding grows with the length (1e-4 of the norm for a million equal
elements, 1e-6 here). The norms of the runs of longer tensors are combined in float64."""


def host_place(tensor: torch.Tensor) -> HostPlace | None:
    """Return address, number, kind and description of numbers that the compiled pass reads where they are; None for
    other dtypes, devices and layouts, for a pending negation, and for a subclass of tensors."""
    if type(tensor) not in PLAIN:  # first: the class of the user's would see what is asked of it
        return None
    dtype = tensor.dtype
    kind = KINDS.get(dtype)
    if kind is None or not tensor.is_cpu or tensor.layout is not torch.strided:
        return None
    if not tensor.is_contiguous() or tensor.is_neg() or not (size := tensor.numel()):
        return None
    return tensor.data_ptr(), size, kind, (tuple(tensor.shape), dtype, None)


class HostRows:
    """Moments that lie in host memory, a row for each tensor. What NumPy does is left to the thread that needs them."""

    def __init__(self, buffer: array[float], places: list[int]) -> None:
        self._buffer, self._places = buffer, places

    def __call__(self) -> Array:
        return fused_reduce.rows_of(self._buffer)[:, self._places]

    def __array__(self, *args: Any, **kwargs: Any) -> Array:
        return np.asarray(self(), *args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HostRows) and self._buffer.tobytes() == other._buffer.tobytes()

    __hash__ = None  # type: ignore[assignment]


def in_one_pass(tensors: Sequence[torch.Tensor], columns: tuple[str, ...], eps: float) -> Array | None:
    """Return :func:`moments` of tensors of one kind with a :func:`host_place`, which need not be detached: no operator
    of torch runs. Return None for other tensors, histograms, NaN or Inf."""
    rows = in_place(tensors, columns, eps)
    return None if rows is None else rows()


def in_place(tensors: Sequence[torch.Tensor], columns: tuple[str, ...], eps: float) -> HostRows | None:
    """Return what :func:`in_one_pass` returns, before NumPy has seen it."""
    places = fused_reduce.places(columns) if fused_reduce.available else None
    if places is None or not tensors or not PLAIN.issuperset(map(type, tensors)):
        return None
    dtype, addresses, sizes = tensors[0].dtype, list[int](), list[int]()
    kind = KINDS.get(dtype)
    for tensor in tensors:  # each once: most of the time is that of its first look at a tensor
        if tensor.dtype is not dtype or not tensor.is_cpu or tensor.layout is not torch.strided:
            return None
        if not tensor.is_contiguous() or tensor.is_neg():
            return None
        sizes.append(tensor.numel())
        addresses.append(tensor.data_ptr())
    if kind is None or 0 in sizes:
        return None
    buffer, valid = fused_reduce.FixedArrays(addresses, sizes, kind, eps, fused_reduce.needed(columns)).read()
    return None if 0 in valid else HostRows(buffer, places)


def moments(tensors: Sequence[torch.Tensor], columns: Sequence[str], eps: float) -> Array:
    """Return ``len(tensors) x len(columns)`` float64 moments of detached, non-empty host tensors, a histogram last."""
    if HISTOGRAM in columns:
        return with_histograms(columns, len(tensors), lambda names: moments(tensors, names, eps), map(_counts, tensors))
    if len(tensors) == 1 and tensors[0].numel() > SMALL:
        return np.array([_one(tensors[0], columns, eps)])
    block = np.empty((len(tensors), len(columns)))
    small = [i for i, t in enumerate(tensors) if t.numel() <= SMALL and t.layout is torch.strided]
    if small:
        flat = torch.cat([_as_float(tensors[i]).reshape(-1) for i in small]).numpy()
        block[small] = together(flat, [tensors[i].numel() for i in small], columns, eps)
    for i in set(range(len(tensors))).difference(small):
        block[i] = _one(tensors[i], columns, eps)
    return block


def _counts(tensor: torch.Tensor) -> Array:
    """Return the histogram of one tensor of any size and layout; elements that are not stored count as zeros."""
    absent, times = 0, 1
    if tensor.layout is torch.strided:
        tensor, times = distinct(tensor)
    else:
        values = tensor.to_sparse_coo().coalesce().values()
        tensor, absent = values, tensor.numel() - values.numel()
    row = times * sum((counts(_as_float(piece).numpy()) for piece in pieces(tensor)), np.zeros(BINS))
    row[ZERO] += absent
    return row


def _as_float(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same numbers in float32 or float64: magnitudes of complex ones, 0 and 1 for bool."""
    if tensor.is_complex():
        return tensor.resolve_conj().abs()
    if tensor.dtype in (torch.float32, torch.float64):
        return tensor.resolve_neg() if tensor.is_neg() else tensor
    if tensor.is_quantized:
        return tensor.dequantize()
    return tensor.float() if tensor.is_floating_point() or tensor.dtype is torch.bool else tensor.double()


def _one(tensor: torch.Tensor, columns: Sequence[str], eps: float) -> list[float]:
    """Return moments of one tensor of any size and layout."""
    if (
        tensor.dtype is torch.float32
        and tensor.numel() <= PIECE
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
        and not tensor.is_neg()
    ):
        row = _piece(tensor.view(-1), columns, eps)
        return [row[name] for name in columns]
    wanted = (*columns, "sum") if "m2" in columns and "sum" not in columns else tuple(columns)
    if tensor.layout is not torch.strided:
        row = _sparse(tensor, wanted, eps)
    else:
        tensor, times = distinct(tensor)
        parts = list(_each(tensor, wanted, eps))
        rows, counts = [row for row, _ in parts], [count for _, count in parts]
        row = rows[0] if len(rows) == 1 else merge(rows, counts)
        row = row if times == 1 else repeated(row, times)
    return [row[name] for name in columns]


def _sparse(tensor: torch.Tensor, wanted: Sequence[str], eps: float) -> Row:
    """Return moments in which elements that are not stored count as zeros, and duplicate coordinates add up."""
    values = tensor.to_sparse_coo().coalesce().values()
    absent = tensor.numel() - values.numel()
    zeros = dict.fromkeys(wanted, 0.0)
    if "below" in wanted and eps > 0:
        zeros["below"] = float(absent)
    parts = [(zeros, absent), *(_each(values, wanted, eps) if values.numel() else ())]
    return merge([row for row, _ in parts], [count for _, count in parts])


def _each(tensor: torch.Tensor, wanted: Sequence[str], eps: float) -> Iterator[tuple[Row, int]]:
    for piece in pieces(tensor):
        row = _piece(_as_float(piece), wanted, eps)
        yield {name: row[name] for name in wanted}, piece.numel()


def pieces(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield flat contiguous pieces that together hold every element once; no copy exceeds ``PIECE`` elements."""
    if not tensor.is_contiguous():
        dims = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
        tensor = tensor.permute(dims)
    if tensor.is_contiguous():
        yield from tensor.view(-1).split(PIECE)
    elif tensor.numel() <= PIECE:
        yield tensor.contiguous().view(-1)  # a flat view of the original may have gaps
    else:
        longest = max(range(tensor.dim()), key=tensor.size)
        for half in tensor.tensor_split(2, dim=longest):
            yield from pieces(half)


def _piece(x: torch.Tensor, wanted: Sequence[str], eps: float) -> Row:
    """Return moments of a flat float32 or float64 tensor of at most ``PIECE`` elements."""
    row: Row = {"nans": 0.0, "infs": 0.0}
    if (known := _known(x, wanted, eps)) is not None:
        return dict(zip(fused_reduce.NAMES, known, strict=True))
    row["sum"] = x.sum().item()
    if not math.isfinite(row["sum"]):
        row["nans"] = float(torch.count_nonzero(torch.isnan(x)))
        row["infs"] = float(torch.count_nonzero(torch.isinf(x)))
        row["sum"] = x.sum(dtype=torch.float64).item()
    if "min" in wanted or "max" in wanted:
        low, high = torch.aminmax(x)
        row["min"], row["max"] = low.item(), high.item()
    if "sumsq" in wanted:
        row["sumsq"] = _squares(x, row)
    return _rest(x, row, wanted, eps)


def _known(x: torch.Tensor, wanted: Sequence[str] = (), eps: float = 0.0) -> fused_reduce.Row | None:
    """Return the row of the compiled pass, of which those ``wanted`` are valid; None if that is impossible."""
    if x.dtype is not torch.float32:
        return None
    return fused_reduce.one(x.data_ptr(), x.numel(), eps=eps, more=fused_reduce.needed(wanted))


def _rest(x: torch.Tensor, row: Row, wanted: Sequence[str], eps: float) -> Row:
    """Add the columns that need passes of their own to ``row``; return it."""
    if "m2" in wanted:
        row["m2"] = _deviations(x, row)
    if "below" in wanted:
        row["below"] = float(np.count_nonzero(np.abs(x.numpy()) < eps))
    return row


def _squares(x: torch.Tensor, row: Row) -> float:
    """Return the sum of squares, computed in float64 if squares leave the range of float32."""
    if row["nans"]:
        return math.nan
    if row["infs"]:
        return math.inf
    squares = _sum_of_squares(x)
    if x.dtype is torch.float32 and not SQUARES_TOO_SMALL * x.numel() < squares < math.inf:
        squares = _sum_of_squares(x.double())
    return squares


def _sum_of_squares(x: torch.Tensor) -> float:
    """Return the sum of the squares of a flat tensor."""
    if (known := _known(x)) is not None:
        return known[3]
    if x.numel() <= SHORT:
        return torch.dot(x, x).item()
    ragged = x.numel() % RUN
    runs = (x[:-ragged] if ragged else x).view(-1, RUN)
    lengths = torch.linalg.vector_norm(runs, dim=1).numpy().astype(np.float64)
    squares = float(np.dot(lengths, lengths))
    if ragged:
        rest = x[-ragged:].numpy().astype(np.float64)
        squares += float(np.dot(rest, rest))
    return squares


def _deviations(x: torch.Tensor, row: Row) -> float:
    """Return the sum of squared deviations from the mean: squares of ``x - c`` for any ``c`` near the mean, corrected
    for ``c`` (the shifted-data algorithm: Chan, Golub and LeVeque, 1983)."""
    if row["nans"] or row["infs"]:
        return math.nan
    shifted = x - row["sum"] / x.numel()
    squares, total = _sum_of_squares(shifted), shifted.sum().item()
    if x.dtype is torch.float32 and not SQUARES_TOO_SMALL * x.numel() < squares < math.inf:
        return _deviations(x.double(), row | {"sum": x.sum(dtype=torch.float64).item()})
    return max(squares - total * total / x.numel(), 0.0)
