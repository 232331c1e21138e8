"""Moments of tensors in host memory.

Small tensors, in any number, are concatenated and reduced by NumPy in float64. Larger ones are reduced in float32 by
torch, or in one compiled pass (:mod:`probe.core.backend.fused_reduce`), in pieces that about fit into the cache, and
again in float64 only if values exceeded the range of float32.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch

from probe.core.backend import fused_reduce
from probe.core.backend.fused_reduce import SQUARES_TOO_SMALL
from probe.core.backend.numpy_moments import SMALL, together, with_histograms
from probe.core.histogram import BINS, HISTOGRAM, ZERO, counts
from probe.core.moments import merge, repeated
from probe.pytorch.dtensor import distinct

Array = npt.NDArray[np.float64]
Row = dict[str, float]

PIECE = 1 << 20
"""Elements reduced at a time: bounds the copy of a converted or strided tensor."""
SHORT = 1 << 15
"""Elements up to which one float32 dot product is sufficiently exact (4e-6 of the norm) and cheaper."""
KINDS = {getattr(torch, kind): kind for kind in fused_reduce.KINDS}
"""Dtypes that the compiled pass reads."""
ONE_PASS = {name: n for n, name in enumerate((*fused_reduce.NAMES, "", "nans", "infs"))}
"""Moments of the compiled pass, which fails if there is NaN or Inf, and their indices."""
RUN = 1024
"""Elements whose squares are summed in float32: rounding grows with the length (1e-4 of the norm for a million equal
elements, 1e-6 here). The norms of the runs of longer tensors are combined in float64."""


def in_one_pass(tensors: Sequence[torch.Tensor], columns: tuple[str, ...], eps: float) -> Array | None:
    """Return :func:`moments` in a tenth of the time for short tensors, which need not be detached: no operator of torch
    runs. Return None for other dtypes, layouts with gaps, histograms, NaN or Inf."""
    places, dtype = _places(columns) if fused_reduce.available else None, tensors[0].dtype
    kind = KINDS.get(dtype)
    if places is None or kind is None or not all(_ready(tensor, dtype) for tensor in tensors):
        return None
    chosen, more = places
    if len(tensors) == 1:
        row = fused_reduce.one(tensors[0].data_ptr(), tensors[0].numel(), kind, eps, more)
        return None if row is None else np.array([[(*row, 0.0, 0.0)[place] for place in chosen]])
    rows, sound = fused_reduce.each([t.data_ptr() for t in tensors], [t.numel() for t in tensors], kind, eps, more)
    return np.concatenate([rows, np.zeros((len(rows), 2))], axis=1)[:, chosen] if sound.all() else None


@functools.cache
def _places(columns: tuple[str, ...]) -> tuple[list[int], int] | None:
    """Return the indices of the columns among those of one pass, and what it has to compute; None if one of them is not
    there."""
    known = ONE_PASS.keys() >= set(columns)
    return ([ONE_PASS[name] for name in columns], fused_reduce.needed(columns)) if known else None


def _ready(tensor: torch.Tensor, dtype: torch.dtype) -> bool:
    """Return whether the elements have ``dtype`` and lie side by side in host memory, without a pending negation."""
    if tensor.dtype is not dtype or not tensor.is_cpu or tensor.layout is not torch.strided:
        return False
    return tensor.is_contiguous() and not tensor.is_neg()


def moments(tensors: Sequence[torch.Tensor], columns: Sequence[str], eps: float) -> Array:
    """Return ``len(tensors) x len(columns)`` float64 moments of detached, non-empty host tensors, a histogram last."""
    if HISTOGRAM in columns:
        return with_histograms(columns, len(tensors), lambda plain: moments(tensors, plain, eps), map(_counts, tensors))
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
    row = times * sum((counts(_as_float(piece).numpy()) for piece in _pieces(tensor)), np.zeros(BINS))
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
        pieces = list(_each(tensor, wanted, eps))
        rows, counts = [row for row, _ in pieces], [count for _, count in pieces]
        row = rows[0] if len(rows) == 1 else merge(rows, counts)
        row = row if times == 1 else repeated(row, times)
    return [row[name] for name in columns]


def _sparse(tensor: torch.Tensor, wanted: Sequence[str], eps: float) -> Row:
    """Return moments in which elements that are not stored count as zeros, and duplicate coordinates add up."""
    values = tensor.to_sparse_coo().coalesce().values()
    absent = tensor.numel() - values.numel()
    zeros = dict.fromkeys(wanted, 0.0) | {"below": float(absent) if eps > 0 else 0.0}
    parts = [(zeros, absent), *(_each(values, wanted, eps) if values.numel() else ())]
    return merge([{name: row[name] for name in wanted} for row, _ in parts], [count for _, count in parts])


def _each(tensor: torch.Tensor, wanted: Sequence[str], eps: float) -> Iterator[tuple[Row, int]]:
    for piece in _pieces(tensor):
        yield _piece(_as_float(piece), wanted, eps), piece.numel()


def _pieces(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
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
            yield from _pieces(half)


def _piece(x: torch.Tensor, wanted: Sequence[str], eps: float) -> Row:
    """Return moments of a flat float32 or float64 tensor of at most ``PIECE`` elements."""
    row: Row = {"nans": 0.0, "infs": 0.0}
    if (known := _known(x, wanted, eps)) is not None:
        return row | dict(zip(fused_reduce.NAMES, known, strict=False))
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
