"""Moments on a CUDA device in one pass: two kernels for each dtype, for any number of tensors and ops; one kernel for
one small tensor.

A program reduces one chunk of one tensor; a second kernel merges each tensor's chunks in a fixed order, so that equal
input has equal moments. Each lane of a program adds at most 64 elements in float32; lanes and chunks are added in
float64. A chunk whose squares float32 cannot hold is read again in float64. The variance from raw sums needs float64
throughout (the cancellation at std = 1e-4 of the mean costs 1e-8), and so do elements in float64. Only the columns that
are wanted are computed: they are flags at compile time.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import triton
import triton.language as tl

from probe.core.moments import MOMENTS

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

_PARTIAL = 7
"""Numbers that a program leaves: all moments but ``m2``."""
_MIN, _MAX, _SUM, _SUMSQ = tl.constexpr(1), tl.constexpr(2), tl.constexpr(4), tl.constexpr(8)
_M2, _NANS, _INFS, _BELOW = tl.constexpr(16), tl.constexpr(32), tl.constexpr(64), tl.constexpr(128)
_FLAGS = {name: 1 << place for place, name in enumerate(MOMENTS)}
_ADDED, _RANGE = tl.constexpr(4 + 8 + 16), tl.constexpr(256)  # the range: extremes for our own use, NaN left out
_HUGE, _TINY = tl.constexpr(1e18), tl.constexpr(1e-13)
"""Magnitudes between which float32 holds 64 squares, the least of which still counts."""


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


def moments(tensors: Sequence[torch.Tensor], columns: Sequence[str], eps: torch.Tensor | None) -> torch.Tensor:
    """Return ``len(tensors) x len(columns)`` float64 on the device of the tensors, which all have one dtype.

    Args:
        eps: 0-d float64 on that device; may be None where ``below`` is not among the columns.
    """
    device, dtype = tensors[0].device, tensors[0].dtype
    wanted = sum(_FLAGS[name] for name in set(columns))
    wide = dtype == torch.float64 or "m2" in columns
    ordered = [name for name in MOMENTS if name in columns]
    result = torch.empty((len(tensors), len(ordered)), dtype=torch.float64, device=device)
    limit = result if eps is None else eps
    chunk = chunk_of(sum(tensor.numel() for tensor in tensors))
    with torch.cuda.device(device) if device.type == "cuda" else torch.no_grad():
        if len(tensors) == 1:
            _one(tensors[0], chunk, limit, result, wanted, wide)
        else:
            _several(tensors, chunk, limit, result, wanted, wide)
    if list(columns) == ordered:
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
    partial = torch.empty((chunks, _PARTIAL), dtype=torch.float64, device=tensor.device) if chunks > 1 else result
    _reduce_one[(chunks,)](tensor, count, chunk, eps, partial, wanted, wide, chunks == 1, BLOCK, num_warps=WARPS)
    if chunks > 1:
        _merge_one[(1,)](chunks, count, partial, result, wanted, 128, num_warps=4)


def _several(
    tensors: Sequence[torch.Tensor], chunk: int, eps: torch.Tensor, result: torch.Tensor, wanted: int, wide: bool
) -> None:
    """Reduce tensors that a table on the device names."""
    work, chunks, aligned = _on_device(tensors, chunk)
    partial = torch.empty((chunks, _PARTIAL), dtype=torch.float64, device=result.device)
    dtype = POINTERS[tensors[0].dtype]
    _reduce[(chunks,)](work, eps, partial, dtype, wanted, wide, aligned, BLOCK, num_warps=WARPS)
    _merge[(len(tensors),)](work[2 * chunks :], partial, result, wanted, result.shape[1], 128, num_warps=4)


def _on_device(tensors: Sequence[torch.Tensor], chunk: int) -> AddressTable:
    """Return the table of ``tensors``: the one of an earlier call with equal addresses, as parameters have, or a copy
    of a new one. A stream has its own, so that none is read before it is copied."""
    device, width = tensors[0].device, tensors[0].element_size()
    counts = np.array([tensor.numel() for tensor in tensors], dtype=np.int64)
    starts = np.array([tensor.data_ptr() for tensor in tensors], dtype=np.int64)
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    key = (device, stream, chunk, width, starts.tobytes(), counts.tobytes())
    if (known := _tables.get(key)) is not None:
        return known
    table, chunks = _table(starts, counts, width, chunk)
    host = torch.from_numpy(table)
    copied = (host.pin_memory() if device.type == "cuda" else host).to(device, non_blocking=True)
    found = AddressTable(copied, chunks, not (starts % 16).any())
    if device.type != "cuda" or not torch.cuda.is_current_stream_capturing():  # a graph's memory is its own
        _tables[key] = found
        while len(_tables) > MOST_TABLES:
            _tables.pop(next(iter(_tables)), None)
    return found


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


@triton.jit
def _reduce(
    table,
    eps_at,
    partial,
    dtype: tl.constexpr,
    wanted: tl.constexpr,
    wide: tl.constexpr,
    aligned: tl.constexpr,
    block: tl.constexpr,
):
    program = tl.program_id(0)
    start = tl.load(table + 2 * program).to(tl.pointer_type(dtype))
    length = tl.load(table + 2 * program + 1).to(tl.int32)
    if aligned:
        start = tl.multiple_of(start, 16)
    low, high, total, squares, nans, infs, below = _chunk(start, length, eps_at, wanted, wide, block)
    _leave(partial + 7 * program, low, high, total, squares, nans, infs, below)


@triton.jit(do_not_specialize=["count"])
def _reduce_one(
    start,
    count,
    chunk,
    eps_at,
    out,
    wanted: tl.constexpr,
    wide: tl.constexpr,
    alone: tl.constexpr,
    block: tl.constexpr,
):
    program = tl.program_id(0)
    begin = program.to(tl.int64) * chunk
    length = tl.minimum(count - begin, chunk).to(tl.int32)
    low, high, total, squares, nans, infs, below = _chunk(start + begin, length, eps_at, wanted, wide, block)
    if alone:
        _finish(out, low, high, total, squares, nans, infs, below, count, wanted)
    else:
        _leave(out + 7 * program, low, high, total, squares, nans, infs, below)


@triton.jit
def _chunk(start, length, eps_at, wanted: tl.constexpr, wide: tl.constexpr, block: tl.constexpr):
    """Reduce one chunk; return its numbers in float64."""
    if wide:
        low, high, total, squares, nans, infs, below = _lanes(start, length, eps_at, tl.float64, wanted, block)
    elif _ADDED & wanted:
        low, high, total, squares, nans, infs, below = _lanes(start, length, eps_at, tl.float32, _RANGE | wanted, block)
        largest = tl.maximum(-low, high)
        if (largest > _HUGE) | ((largest > 0) & (largest < _TINY)):
            _, _, total, squares, _, _, _ = _lanes(start, length, eps_at, tl.float64, _ADDED & wanted, block)
    else:
        low, high, total, squares, nans, infs, below = _lanes(start, length, eps_at, tl.float32, wanted, block)
    return low, high, total, squares, nans, infs, below


@triton.jit
def _lanes(start, length, eps_at, number: tl.constexpr, wanted: tl.constexpr, block: tl.constexpr):
    """Reduce elements in lanes of ``number``, then the lanes in float64."""
    low = tl.full((block,), float("inf"), number)
    high = tl.full((block,), float("-inf"), number)
    total = tl.zeros((block,), number)
    squares = tl.zeros((block,), number)
    nans = tl.zeros((block,), tl.int32)
    infs = tl.zeros((block,), tl.int32)
    below = tl.zeros((block,), tl.int32)
    limit = _limit(eps_at, number, wanted)
    whole = length // block * block  # without a mask, so that loads are of 16 bytes
    for rest in tl.static_range(2):
        for begin in range(whole if rest else 0, length if rest else whole, block):
            at = begin + tl.arange(0, block)
            if rest:
                inside = at < length
                x = tl.load(start + at, mask=inside, other=0.0).to(number)
            else:
                x = tl.load(start + at).to(number)
            if (_MIN | _MAX | _RANGE) & wanted:
                is_number = inside & (x == x) if rest else x == x  # noqa: PLR0124 - the language has no isnan
                low = tl.minimum(low, tl.where(is_number, x, float("inf")))
                high = tl.maximum(high, tl.where(is_number, x, float("-inf")))
            if (_SUM | _M2) & wanted:
                total += x
            if (_SUMSQ | _M2) & wanted:
                squares += x * x
            if (_MIN | _MAX | _NANS) & wanted:
                nans += (x != x).to(tl.int32)  # noqa: PLR0124
            if _INFS & wanted:
                infs += (tl.abs(x) == float("inf")).to(tl.int32)
            if _BELOW & wanted:
                is_below = tl.abs(x) < limit
                below += (inside & is_below if rest else is_below).to(tl.int32)
    return (
        tl.min(low, 0).to(tl.float64),
        tl.max(high, 0).to(tl.float64),
        tl.sum(total.to(tl.float64), 0),
        tl.sum(squares.to(tl.float64), 0),
        tl.sum(nans, 0).to(tl.float64),
        tl.sum(infs, 0).to(tl.float64),
        tl.sum(below, 0).to(tl.float64),
    )


@triton.jit
def _limit(eps_at, number: tl.constexpr, wanted: tl.constexpr):
    """The least number that is not below eps."""
    limit = 0.0
    if _BELOW & wanted:
        eps = tl.load(eps_at)
        limit = eps.to(number)
        if number == tl.float32:
            following = (limit.to(tl.int32, bitcast=True) + 1).to(tl.float32, bitcast=True)
            limit = tl.where(limit.to(tl.float64) < eps, following, limit)
    return limit


@triton.jit
def _leave(out, low, high, total, squares, nans, infs, below):
    """Store the numbers of one chunk."""
    tl.store(out, low)
    tl.store(out + 1, high)
    tl.store(out + 2, total)
    tl.store(out + 3, squares)
    tl.store(out + 4, nans)
    tl.store(out + 5, infs)
    tl.store(out + 6, below)


@triton.jit
def _merge(table, partial, result, wanted: tl.constexpr, width: tl.constexpr, block: tl.constexpr):
    program = tl.program_id(0)
    first = tl.load(table + 3 * program)
    chunks = tl.load(table + 3 * program + 1)
    count = tl.load(table + 3 * program + 2)
    _total(partial + 7 * first, chunks, count, result + width * program, wanted, block)


@triton.jit(do_not_specialize=["count"])
def _merge_one(chunks, count, partial, result, wanted: tl.constexpr, block: tl.constexpr):
    _total(partial, chunks, count, result, wanted, block)


@triton.jit
def _total(partial, chunks, count, out, wanted: tl.constexpr, block: tl.constexpr):
    """Merge the chunks of one tensor."""
    low = tl.full((block,), float("inf"), tl.float64)
    high = tl.full((block,), float("-inf"), tl.float64)
    total = tl.zeros((block,), tl.float64)
    squares = tl.zeros((block,), tl.float64)
    nans = tl.zeros((block,), tl.float64)
    infs = tl.zeros((block,), tl.float64)
    below = tl.zeros((block,), tl.float64)
    for begin in range(0, chunks, block):
        at = begin + tl.arange(0, block)
        inside = at < chunks
        row = partial + 7 * at
        low = tl.minimum(low, tl.load(row, mask=inside, other=float("inf")))
        high = tl.maximum(high, tl.load(row + 1, mask=inside, other=float("-inf")))
        total += tl.load(row + 2, mask=inside, other=0.0)
        squares += tl.load(row + 3, mask=inside, other=0.0)
        nans += tl.load(row + 4, mask=inside, other=0.0)
        infs += tl.load(row + 5, mask=inside, other=0.0)
        below += tl.load(row + 6, mask=inside, other=0.0)
    low_all, high_all, sum_all, squares_all = tl.min(low, 0), tl.max(high, 0), tl.sum(total, 0), tl.sum(squares, 0)
    _finish(
        out, low_all, high_all, sum_all, squares_all, tl.sum(nans, 0), tl.sum(infs, 0), tl.sum(below, 0), count, wanted
    )


@triton.jit
def _finish(out, low, high, total, squares, nans, infs, below, count, wanted: tl.constexpr):
    """Store the wanted moments of one tensor, in their order."""
    if _MIN & wanted:
        tl.store(out, tl.where(nans > 0, float("nan"), low))
        out += 1
    if _MAX & wanted:
        tl.store(out, tl.where(nans > 0, float("nan"), high))
        out += 1
    if _SUM & wanted:
        tl.store(out, total)
        out += 1
    if _SUMSQ & wanted:
        tl.store(out, squares)
        out += 1
    if _M2 & wanted:
        deviations = squares - total * total / count.to(tl.float64)
        tl.store(out, tl.where(deviations < 0, 0.0, deviations))
        out += 1
    if _NANS & wanted:
        tl.store(out, nans)
        out += 1
    if _INFS & wanted:
        tl.store(out, infs)
        out += 1
    if _BELOW & wanted:
        tl.store(out, below)
