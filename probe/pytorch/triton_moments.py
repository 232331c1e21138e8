"""Moments on a CUDA device in one pass: two kernels for each dtype, for any number of tensors and ops.

A program reduces one chunk of one tensor; a second kernel merges each tensor's chunks in a fixed order, so that equal
input has equal moments. Sums are in float64, which also makes the variance from raw sums sufficiently exact (the
cancellation at std = 1e-4 of the mean costs 1e-8).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import triton
import triton.language as tl

from probe.core.moments import MOMENTS

CHUNK = 1 << 16
"""Elements that one program reduces."""
BLOCK = 1 << 11
"""Elements that one program holds at a time."""
POINTERS = {
    torch.float32: tl.float32,
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
    torch.float64: tl.float64,
}
"""Dtypes that the kernels read directly; others are converted first."""

_COLUMNS = ("min", "max", "sum", "sumsq", "nans", "infs", "below")


def takes(tensor: torch.Tensor) -> bool:
    """Return whether the kernels can read ``tensor`` without a copy."""
    return tensor.dtype in POINTERS and tensor.layout is torch.strided and tensor.is_contiguous()


def moments(tensors: Sequence[torch.Tensor], columns: Sequence[str], eps: torch.Tensor) -> torch.Tensor:
    """Return ``len(tensors) x len(columns)`` float64 on the device of the tensors, which all have one dtype."""
    table, chunks = _table(tensors)
    device = tensors[0].device
    work = table.to(device, non_blocking=True)
    partial = torch.empty((chunks, len(_COLUMNS)), dtype=torch.float64, device=device)
    result = torch.empty((len(tensors), len(MOMENTS)), dtype=torch.float64, device=device)
    chunk_rows, tensor_rows = work[: 2 * chunks], work[2 * chunks :]
    with torch.cuda.device(device) if device.type == "cuda" else torch.no_grad():
        _reduce[(chunks,)](chunk_rows, eps, partial, POINTERS[tensors[0].dtype], CHUNK, BLOCK, num_warps=8)
        _merge[(len(tensors),)](tensor_rows, partial, result, 128, num_warps=4)
    at = [list(MOMENTS).index(name) for name in columns]
    return result if at == list(range(len(MOMENTS))) else torch.stack([result[:, i] for i in at], dim=1)


def _table(tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, int]:
    """Return one table of chunks (address, length), then tensors (first chunk, chunks, elements); count the chunks."""
    counts = np.array([tensor.numel() for tensor in tensors], dtype=np.int64)
    starts = np.array([tensor.data_ptr() for tensor in tensors], dtype=np.int64)
    width = tensors[0].element_size()
    of_tensor = -(-counts // CHUNK)
    first = np.cumsum(of_tensor) - of_tensor
    chunks = int(of_tensor.sum())
    owner = np.repeat(np.arange(len(tensors)), of_tensor)
    offset = (np.arange(chunks) - first[owner]) * CHUNK
    addresses, lengths = starts[owner] + offset * width, np.minimum(counts[owner] - offset, CHUNK)
    table = np.concatenate([np.stack([addresses, lengths], 1).ravel(), np.stack([first, of_tensor, counts], 1).ravel()])
    host = torch.from_numpy(table)
    return (host.pin_memory() if torch.cuda.is_available() else host), chunks


@triton.jit
def _reduce(table, eps_at, partial, dtype: tl.constexpr, chunk: tl.constexpr, block: tl.constexpr):
    program = tl.program_id(0)
    start = tl.load(table + 2 * program).to(tl.pointer_type(dtype))
    length = tl.load(table + 2 * program + 1)
    eps = tl.load(eps_at)
    low = tl.full((block,), float("inf"), tl.float64)
    high = tl.full((block,), float("-inf"), tl.float64)
    total = tl.zeros((block,), tl.float64)
    squares = tl.zeros((block,), tl.float64)
    nans = tl.zeros((block,), tl.int32)
    infs = tl.zeros((block,), tl.int32)
    below = tl.zeros((block,), tl.int32)
    for begin in range(0, chunk, block):
        at = begin + tl.arange(0, block)
        inside = at < length
        x = tl.load(start + at, mask=inside, other=0.0).to(tl.float64)
        is_number = inside & (x == x)  # noqa: PLR0124 - the language has no isnan
        size = tl.abs(x)
        low = tl.minimum(low, tl.where(is_number, x, float("inf")))
        high = tl.maximum(high, tl.where(is_number, x, float("-inf")))
        total += x
        squares += x * x
        nans += (inside & (x != x)).to(tl.int32)  # noqa: PLR0124
        infs += (inside & (size == float("inf"))).to(tl.int32)
        below += (inside & (size < eps)).to(tl.int32)
    out = partial + 7 * program
    tl.store(out, tl.min(low, 0))
    tl.store(out + 1, tl.max(high, 0))
    tl.store(out + 2, tl.sum(total, 0))
    tl.store(out + 3, tl.sum(squares, 0))
    tl.store(out + 4, tl.sum(nans, 0).to(tl.float64))
    tl.store(out + 5, tl.sum(infs, 0).to(tl.float64))
    tl.store(out + 6, tl.sum(below, 0).to(tl.float64))


@triton.jit
def _merge(table, partial, result, block: tl.constexpr):
    program = tl.program_id(0)
    first = tl.load(table + 3 * program)
    chunks = tl.load(table + 3 * program + 1)
    count = tl.load(table + 3 * program + 2).to(tl.float64)
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
        row = partial + 7 * (first + at)
        low = tl.minimum(low, tl.load(row, mask=inside, other=float("inf")))
        high = tl.maximum(high, tl.load(row + 1, mask=inside, other=float("-inf")))
        total += tl.load(row + 2, mask=inside, other=0.0)
        squares += tl.load(row + 3, mask=inside, other=0.0)
        nans += tl.load(row + 4, mask=inside, other=0.0)
        infs += tl.load(row + 5, mask=inside, other=0.0)
        below += tl.load(row + 6, mask=inside, other=0.0)
    missing = tl.sum(nans, 0)
    sum_all = tl.sum(total, 0)
    squares_all = tl.sum(squares, 0)
    out = result + 8 * program
    tl.store(out, tl.where(missing > 0, float("nan"), tl.min(low, 0)))
    tl.store(out + 1, tl.where(missing > 0, float("nan"), tl.max(high, 0)))
    tl.store(out + 2, sum_all)
    tl.store(out + 3, squares_all)
    deviations = squares_all - sum_all * sum_all / count
    tl.store(out + 4, tl.where(deviations < 0, 0.0, deviations))
    tl.store(out + 5, missing)
    tl.store(out + 6, tl.sum(infs, 0))
    tl.store(out + 7, tl.sum(below, 0))
