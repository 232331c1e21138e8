"""Moments of tensors on a device, without waiting for it, and the one copy that brings them to the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Array = npt.NDArray[np.float64]


def moments(tensors: Sequence[torch.Tensor], columns: Sequence[str], eps: Any) -> torch.Tensor:
    """``len(tensors) x len(columns)`` float64 on the tensors' device."""
    return torch.stack([_row(tensor, columns, eps) for tensor in tensors])


def _row(tensor: torch.Tensor, columns: Sequence[str], eps: Any) -> torch.Tensor:
    x = _as_float(tensor)
    return torch.stack([_COLUMNS[name](x, eps).to(torch.float64) for name in columns])


def _as_float(tensor: torch.Tensor) -> torch.Tensor:
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
    return (x - x.mean(dtype=torch.float64)).square().sum()


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


def to_host(blocks: Sequence[Any]) -> Callable[[], Array]:
    """Starts the copy of all device blocks, one a device; the function returned waits for them and gives all rows."""
    arrived: dict[torch.device, Callable[[], Array]] = {}
    for device in {block.device for block in blocks if isinstance(block, torch.Tensor)}:
        arrived[device] = _copy(torch.cat([b for b in blocks if isinstance(b, torch.Tensor) and b.device == device]))

    def wait() -> Array:
        here = {device: iter(np.split(rows(), _ends(blocks, device))) for device, rows in arrived.items()}
        rows = [next(here[b.device]) if isinstance(b, torch.Tensor) else b for b in blocks]
        return np.concatenate(rows) if rows else np.empty((0, 0))

    return wait


def _ends(blocks: Sequence[Any], device: torch.device) -> Array:
    return np.cumsum([len(b) for b in blocks if isinstance(b, torch.Tensor) and b.device == device])


def _copy(rows: torch.Tensor) -> Callable[[], Array]:
    if rows.device.type != "cuda":
        copied = rows.to("cpu")
        return lambda: copied.numpy()
    pinned = torch.empty(rows.shape, dtype=rows.dtype, pin_memory=True)
    pinned.copy_(rows, non_blocking=True)
    done = torch.cuda.Event()
    done.record(torch.cuda.current_stream(rows.device))

    def wait() -> Array:
        done.synchronize()
        return pinned.numpy()

    return wait
