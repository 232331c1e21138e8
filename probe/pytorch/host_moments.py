"""Moments of tensors in host memory: by one call of the compiled pass (:mod:`probe.core.backend.fused_reduce`) where it
can read them where they are, else by NumPy, of views or of converted pieces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from probe.core.backend import fused_reduce
from probe.core.backend.fused_reduce import HostRows
from probe.core.backend.numpy_moments import SMALL, Elements, of_elements
from probe.core.backend.protocols import HostPlace
from probe.pytorch.dtensor import LOW, PLAIN, distinct, is_stored, local, readable_places, stored

Array = npt.NDArray[np.float64]

PIECE = 1 << 20
"""Elements reduced at a time: bounds the copy of a converted or strided tensor."""
KINDS = {getattr(torch, name): kind for name, kind in fused_reduce.KINDS.items()}
"""Dtypes that the compiled pass reads."""


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
    address = tensor.data_ptr()
    if address < LOW and address == tensor.storage_offset() * tensor.itemsize:  # as is_stored looks, without a call
        return None
    return address, size, kind, (tuple(tensor.shape), dtype, None)


def in_one_pass(tensors: Sequence[torch.Tensor], columns: tuple[str, ...], eps: float) -> HostRows | None:
    """Return :func:`moments` of tensors with a :func:`host_place`, which need not be detached: no operator of torch
    runs. Return None for other tensors, histograms, and sums beyond the range of float32."""
    if fused_reduce.places(columns) is None or not tensors:
        return None
    if type(first := local(tensors[0])) not in PLAIN or not first.is_cpu:
        return None
    places = readable_places(tensors, KINDS) or readable_places([*map(local, tensors)], KINDS)
    if places is None:
        return None
    dtypes, addresses, sizes = places
    kinds = [*map(KINDS.__getitem__, dtypes)]
    rows, valid = fused_reduce.moments(columns, addresses, sizes, kinds, eps)
    return None if 0 in valid else rows


def moments(tensors: Sequence[torch.Tensor], columns: Sequence[str], eps: float) -> Array:
    """Return ``len(tensors) x len(columns)`` float64 moments of detached, non-empty host tensors, a histogram last."""
    return of_elements([_elements(tensor) for tensor in tensors], columns, eps)


def _elements(tensor: torch.Tensor) -> Elements:
    """Return the elements of a tensor of any layout: those that are not stored are zeros, and duplicate coordinates add
    up."""
    if tensor.layout is not torch.strided:
        values = tensor.to_sparse_coo().coalesce().values()
        return Elements(values.numel(), partial(_arrays, values), absent=tensor.numel() - values.numel())
    if not is_stored(tensor):
        return Elements(tensor.numel(), lambda: _arrays(stored(tensor)))
    if tensor.numel() <= SMALL:
        return Elements(tensor.numel(), lambda: (_as_float(tensor).reshape(-1).numpy(),))
    once, times = distinct(tensor)
    return Elements(once.numel(), partial(_arrays, once), times)


def _arrays(tensor: torch.Tensor) -> Iterator[npt.NDArray[Any]]:
    return (_as_float(piece).numpy() for piece in pieces(tensor) if piece.numel())


def _as_float(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same numbers in float32 or float64: magnitudes of complex ones, 0 and 1 for bool."""
    if tensor.is_complex():
        return tensor.resolve_conj().abs()
    if tensor.dtype in (torch.float32, torch.float64):
        return tensor.resolve_neg() if tensor.is_neg() else tensor
    if tensor.is_quantized:
        return tensor.dequantize()
    return tensor.float() if tensor.is_floating_point() or tensor.dtype is torch.bool else tensor.double()


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
