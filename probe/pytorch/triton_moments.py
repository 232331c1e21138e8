"""Moments on a CUDA device in one pass: two kernels for each dtype, for any number of tensors and ops; one kernel for
one small tensor. The kernels are those of :mod:`probe.pytorch.triton_kernels`."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import triton.language as tl

from probe.core.moments import MOMENTS
from probe.pytorch import triton_kernels as kernels
from probe.pytorch.dtensor import readable_places

Integers = npt.NDArray[np.int64]

BLOCK = 1 << 11
"""Elements that one program holds at a time: its lanes."""
SMALLEST, LARGEST = 1 << 13, 1 << 16
"""Bounds of a chunk, the elements that one program reduces. No lane of the largest adds more than 64."""
PROGRAMS = 1 << 10
"""Chunks are smaller where they would be fewer: enough to occupy every multiprocessor."""
WARPS = 8
POINTERS = {
    torch.float32: tl.float32,
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
    torch.float64: tl.float64,
}
"""Dtypes that the kernels read directly; others are converted first."""
_NOTHING = nullcontext()
_FLAGS = {name: 1 << place for place, name in enumerate(MOMENTS)}


class AddressTable(NamedTuple):
    """Addresses of tensors on their device."""

    numbers: torch.Tensor
    chunks: int
    aligned: bool
    """True if each tensor begins at a multiple of 16 bytes."""


MOST_TABLES = 32
"""Tables that are kept; the oldest goes first."""
_tables: dict[Hashable, AddressTable] = {}


def takes(tensor: torch.Tensor) -> bool:
    """Return whether the kernels can read ``tensor`` without a copy."""
    return tensor.dtype in POINTERS and tensor.layout is torch.strided and tensor.is_contiguous()


class _Plan(NamedTuple):
    """Work of the kernels for some columns."""

    wanted: int
    """Flags of the columns."""
    ordered: tuple[str, ...]
    """The columns in the order in which the kernels leave them."""


@functools.lru_cache(maxsize=64)
def _plan(columns: tuple[str, ...]) -> _Plan:
    return _Plan(sum(_FLAGS[name] for name in set(columns)), tuple(name for name in MOMENTS if name in columns))


def in_place(
    tensors: Sequence[torch.Tensor], columns: tuple[str, ...], eps: torch.Tensor | None
) -> torch.Tensor | None:
    """Return :func:`moments` of tensors of one dtype on one CUDA device that the kernels read where they are; they need
    not be detached, and each is looked at once. None for others."""
    if (places := readable_places(tensors, POINTERS)) is None:
        return None
    dtypes, addresses, sizes = places
    return _reduced(tensors, addresses, sizes, columns, eps) if len({*dtypes}) == 1 else None


def moments(tensors: Sequence[torch.Tensor], columns: Sequence[str], eps: torch.Tensor | None) -> torch.Tensor:
    """Return ``len(tensors) x len(columns)`` float64 on the device of the tensors, which all have one dtype.

    Args:
        eps: 0-d float64 on that device; may be None where ``below`` is not among the columns.
    """
    addresses, sizes = [tensor.data_ptr() for tensor in tensors], [tensor.numel() for tensor in tensors]
    return _reduced(tensors, addresses, sizes, tuple(columns), eps)


def _reduced(
    tensors: Sequence[torch.Tensor],
    addresses: Sequence[int],
    sizes: Sequence[int],
    columns: tuple[str, ...],
    eps: torch.Tensor | None,
) -> torch.Tensor:
    device, dtype = tensors[0].device, tensors[0].dtype
    ops, ordered = _plan(columns)
    wide = dtype == torch.float64 or "m2" in columns
    result = torch.empty((len(tensors), len(ordered)), dtype=torch.float64, device=device)
    limit = result if eps is None else eps
    chunk = chunk_of(sum(sizes))
    is_elsewhere = device.type == "cuda" and device.index != torch.cuda.current_device()
    with torch.cuda.device(device) if is_elsewhere else _NOTHING:
        if len(tensors) == 1:
            _one(tensors[0], chunk, limit, result, ops, wide)
        else:
            table = _on_device(device, tensors[0].element_size(), addresses, sizes, chunk)
            _several(table, len(tensors), POINTERS[dtype], limit, result, ops, wide)
    if columns == ordered:
        return result
    return torch.stack([result[:, ordered.index(name)] for name in columns], dim=1)


def chunk_of(elements: int) -> int:
    """Return the number of elements of a chunk where all tensors together have so many."""
    chunk = LARGEST
    while chunk > SMALLEST and elements < chunk * PROGRAMS:
        chunk //= 2
    return chunk


def _one(tensor: torch.Tensor, chunk: int, eps: torch.Tensor, result: torch.Tensor, wanted: int, wide: bool) -> None:
    """Reduce one tensor: it is an argument of the kernel, and nothing is copied to the device."""
    count = tensor.numel()
    chunks = -(-count // chunk)
    partial = (
        torch.empty((chunks, kernels.PARTIAL.value), dtype=torch.float64, device=tensor.device)
        if chunks > 1
        else result
    )
    kernels.reduce_one[(chunks,)](tensor, count, chunk, eps, partial, wanted, wide, chunks == 1, BLOCK, num_warps=WARPS)
    if chunks > 1:
        kernels.merge_one[(1,)](chunks, partial, result, wanted, 128, num_warps=4)


def _several(
    table: AddressTable, number: int, dtype: Any, eps: torch.Tensor, result: torch.Tensor, wanted: int, wide: bool
) -> None:
    """Reduce tensors that a table on the device names."""
    work, chunks, aligned = table
    partial = torch.empty((chunks, kernels.PARTIAL.value), dtype=torch.float64, device=result.device)
    kernels.reduce[(chunks,)](work, eps, partial, dtype, wanted, wide, aligned, BLOCK, num_warps=WARPS)
    kernels.merge[(number,)](work[2 * chunks :], partial, result, wanted, result.shape[1], 128, num_warps=4)


def _on_device(
    device: torch.device, width: int, addresses: Sequence[int], sizes: Sequence[int], chunk: int
) -> AddressTable:
    """Return the table of tensors at these addresses: that of an earlier call with equal ones, as parameters have, or a
    copy of a new one. A stream has its own, so that none is read before it is copied."""
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    key = (device, stream, chunk, width, *addresses, *sizes)
    if (in_use := _tables.get(key)) is not None:
        return in_use
    starts, counts = np.array(addresses, dtype=np.int64), np.array(sizes, dtype=np.int64)
    table, chunks = _table(starts, counts, width, chunk)
    host = torch.from_numpy(table)
    copied = (host.pin_memory() if device.type == "cuda" else host).to(device, non_blocking=True)
    entry = AddressTable(copied, chunks, not (starts % 16).any())
    if device.type != "cuda" or not torch.cuda.is_current_stream_capturing():  # a graph's memory is its own
        _tables[key] = entry
        while len(_tables) > MOST_TABLES:
            _tables.pop(next(iter(_tables)), None)
    return entry


def _table(starts: Integers, counts: Integers, width: int, chunk: int) -> tuple[Integers, int]:
    """Return one table of chunks (address, length), then tensors (first chunk, chunks, elements); count the chunks."""
    of_tensor = -(-counts // chunk)
    first = np.cumsum(of_tensor) - of_tensor
    chunks = int(of_tensor.sum())
    owner = np.repeat(np.arange(len(counts)), of_tensor)
    offset = (np.arange(chunks) - first[owner]) * chunk
    addresses, lengths = starts[owner] + offset * width, np.minimum(counts[owner] - offset, chunk)
    table = np.concatenate([np.stack([addresses, lengths], 1).ravel(), np.stack([first, of_tensor, counts], 1).ravel()])
    return table, chunks
