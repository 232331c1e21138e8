"""Moments of tensors on a device, computed without waiting for it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from probe.core.histogram import BINS, HIGH, HISTOGRAM, INFINITE, LOW, NAN, ZERO
from probe.core.moments import repeated
from probe.pytorch.dtensor import distinct, is_stored, stored

Array = npt.NDArray[np.float64]

PIECE = 1 << 24
"""Elements of a histogram that are counted at a time: bounds the memory for the indices of their bins."""
LANES = 64
"""Copies of each count: many elements share a bin, and atomic additions to one count wait for each other."""


def moments(tensors: Sequence[torch.Tensor], columns: Sequence[str], eps: Any) -> torch.Tensor:
    """Return ``len(tensors) x len(columns)`` float64 on the tensors' device: in a few launches if Triton is available,
    else with several of torch's reductions for each tensor. A histogram, ``BINS`` wide, comes last."""
    if HISTOGRAM in columns:
        counted = torch.stack([histogram(tensor) for tensor in tensors])
        return torch.cat([moments(tensors, columns[:-1], eps), counted], dim=1) if columns[:-1] else counted
    once, times = zip(*map(distinct, tensors), strict=True)
    kernels = _kernels()
    if kernels is None or any(tensor.device.type != "cuda" or not is_stored(tensor) for tensor in once):
        rows = torch.stack([_row(tensor, columns, eps) for tensor in once])
    else:
        rows = by_kernels(kernels, once, columns, eps)
    for i in (i for i, number in enumerate(times) if number != 1):
        rows[i] = torch.stack([*repeated(dict(zip(columns, rows[i], strict=True)), times[i]).values()])
    return rows


def in_place(tensors: Sequence[torch.Tensor], columns: tuple[str, ...], eps: float) -> torch.Tensor | None:
    """Return :func:`moments` of tensors of one dtype that the kernels read where they are; they need not be detached.
    Return None for others, for histograms and without Triton."""
    if not tensors or not tensors[0].is_cuda or HISTOGRAM in columns or (kernels := _kernels()) is None:
        return None
    limit = _limit(eps, tensors[0].device) if "below" in columns else None
    rows: torch.Tensor | None = kernels.in_place(tensors, columns, limit)
    return rows


def histogram(tensor: torch.Tensor) -> torch.Tensor:
    """Return the ``BINS`` counts of one tensor: see :mod:`probe.core.histogram`."""
    once, times = distinct(tensor)
    device = once.device
    counted = torch.zeros(LANES * BINS, dtype=torch.int64, device=device)
    one = torch.ones((), dtype=torch.int64, device=device)
    lanes = torch.arange(LANES, device=device).mul_(BINS)
    for piece in _as_float(once).reshape(-1).split(PIECE):
        at = lanes.repeat(-(-piece.numel() // LANES))[: piece.numel()].add_(_bins(piece))
        counted.scatter_add_(0, at, one.expand(piece.numel()))
    return counted.view(LANES, BINS).sum(0).mul_(times).to(torch.float64)


def _bins(x: torch.Tensor) -> torch.Tensor:
    """Return the index of the bin of each float32 or float64 number, from its bits."""
    whole, shift, bias = (torch.int32, 23, 127) if x.dtype == torch.float32 else (torch.int64, 52, 1023)
    exponent = ((x.view(whole) >> shift) & (2 * bias + 1)) - bias
    distance = exponent.clamp_(LOW - 1, HIGH).sub_(LOW - 2)
    distance.masked_fill_(x == 0, 0).masked_fill_(torch.isinf(x), INFINITE)
    return torch.where(torch.signbit(x), ZERO - distance, ZERO + distance).masked_fill_(torch.isnan(x), NAN)


def by_kernels(kernels: ModuleType, given: Sequence[torch.Tensor], columns: Sequence[str], eps: Any) -> torch.Tensor:
    """Call the kernels once for each dtype and device; return the rows in the order of ``given``."""
    tensors = [tensor if kernels.takes(tensor) else _as_float(tensor).contiguous() for tensor in given]
    groups: dict[tuple[torch.dtype, torch.device], list[int]] = {}
    for i, tensor in enumerate(tensors):
        groups.setdefault((tensor.dtype, tensor.device), []).append(i)
    first = tensors[0].device
    blocks = []
    for (_, device), members in groups.items():
        limit = _limit(eps, device) if "below" in columns else None
        blocks.append(kernels.moments([tensors[i] for i in members], columns, limit).to(first))
    if len(blocks) == 1:
        return blocks[0]
    order = np.argsort(np.concatenate(list(groups.values())))
    rows = torch.cat(blocks).unbind()
    return torch.stack([rows[i] for i in order])


def _limit(eps: Any, device: torch.device) -> torch.Tensor:
    if torch.is_tensor(eps):
        return eps.to(device, torch.float64)
    return torch.full((), eps, dtype=torch.float64, device=device)


@functools.cache
def _kernels() -> ModuleType | None:
    """Return the Triton kernels; None without Triton, which torch for CUDA on Linux includes."""
    try:
        from probe.pytorch import triton_moments
    except ImportError:
        return None
    return triton_moments


def _row(tensor: torch.Tensor, columns: Sequence[str], eps: Any) -> torch.Tensor:
    x = _as_float(tensor)
    return torch.stack([_COLUMNS[name](x, eps).to(torch.float64) for name in columns])


def _as_float(tensor: torch.Tensor) -> torch.Tensor:
    tensor = stored(tensor)
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_complex():
        return tensor.abs()
    if tensor.is_quantized:
        return tensor.dequantize()
    if not tensor.is_floating_point():
        return tensor.double()
    return tensor.float() if tensor.element_size() < torch.float32.itemsize else tensor


def _squares(x: torch.Tensor, _: Any) -> torch.Tensor:
    return torch.linalg.vector_norm(x, dtype=torch.float64).square()


def _deviations(x: torch.Tensor, _: Any) -> torch.Tensor:
    """Return the sum of squares of ``x - c`` for a ``c`` near the mean, corrected for ``c``: see ``numpy_moments``."""
    shifted = x - x.mean(dtype=torch.float64).to(x.dtype)
    off = shifted.mean(dtype=torch.float64)
    return (_squares(shifted, None) - x.numel() * off.square()).clamp(min=0)


_COLUMNS: dict[str, Callable[[torch.Tensor, Any], torch.Tensor]] = {
    "min": lambda x, _: x.amin(),
    "max": lambda x, _: x.amax(),
    "sum": lambda x, _: x.sum(dtype=torch.float64),
    "sumsq": _squares,
    "m2": _deviations,
    "nans": lambda x, _: torch.isnan(x).sum(),
    "infs": lambda x, _: torch.isinf(x).sum(),
    "below": lambda x, eps: (x.abs() < eps).sum(),
}
