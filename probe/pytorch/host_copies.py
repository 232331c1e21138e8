"""Copies of numbers from a CUDA device to the host: started without waiting, and waited for by another thread."""

from __future__ import annotations

import ctypes
import functools
import re
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from probe.pytorch.modes import unseen

Array = npt.NDArray[np.float64]

LEAST = 1 << 10
"""Numbers that the smallest buffer holds."""
MOST_SPARE = 64
"""Buffers of one size that are kept for later copies."""
RELAXED = 2
"""``cudaStreamCaptureModeRelaxed``."""


class _Buffer:
    """Page-locked memory, and the event that stands behind the last copy to it. Both are used again and again: to make
    and free them may wait for the device, and must not happen while a graph is captured."""

    def __init__(self, size: int) -> None:
        # the program may have chosen another default device
        self.numbers = torch.empty(size, dtype=torch.float64, device="cpu", pin_memory=True)
        self.array = self.numbers.numpy()
        self.done = torch.cuda.Event()


_buffers: dict[tuple[torch.device, int], list[_Buffer]] = {}
"""Buffers that no copy uses, by device and size."""


def to_host(blocks: Sequence[Any]) -> Callable[[], Array]:
    """Start one copy of all blocks on each device; return a function that waits for them and returns all rows."""
    arriving: dict[torch.device, Callable[[], Array]] = {}
    with torch._C.DisableTorchFunction(), unseen():
        for device in {block.device for block in blocks if isinstance(block, torch.Tensor)}:
            mine = [block for block in blocks if isinstance(block, torch.Tensor) and block.device == device]
            arriving[device] = _copy(torch.cat(mine) if len(mine) > 1 else mine[0])

    def wait() -> Array:
        if not arriving:
            return np.concatenate(blocks) if len(blocks) > 1 else np.asarray(blocks[0] if blocks else np.empty((0, 0)))
        rows_of = {device: iter(np.split(rows(), _ends(blocks, device))) for device, rows in arriving.items()}
        return np.concatenate([next(rows_of[b.device]) if isinstance(b, torch.Tensor) else b for b in blocks])

    return wait


def _ends(blocks: Sequence[Any], device: torch.device) -> npt.NDArray[np.int64]:
    return np.cumsum([len(b) for b in blocks if isinstance(b, torch.Tensor) and b.device == device])


def _copy(rows: torch.Tensor) -> Callable[[], Array]:
    if rows.device.type != "cuda":
        copied = rows.to("cpu")
        return copied.numpy
    number, size = rows.numel(), max(LEAST, 1 << (rows.numel() - 1).bit_length())
    spare = _buffers.setdefault((rows.device, size), [])
    buffer = spare.pop() if spare else _Buffer(size)
    buffer.numbers[:number].view(rows.shape).copy_(rows, non_blocking=True)
    buffer.done.record(torch.cuda.current_stream(rows.device))
    return _Arrival(buffer, rows.shape, spare).wait


class _Arrival:
    """Rows on their way to the host, through a buffer that is given back once they are there."""

    def __init__(self, buffer: _Buffer, shape: Sequence[int], spare: list[_Buffer]) -> None:
        self._buffer: _Buffer | None = buffer
        self._shape, self._spare, self._lock = (*shape,), spare, threading.Lock()
        self._rows = np.empty((0, 0))

    def wait(self) -> Array:
        """Return the rows; wait for the device."""
        with self._lock:
            if (buffer := self._buffer) is not None:
                wait_for(buffer.done)
                number = int(np.prod(self._shape))
                self._rows = buffer.array[:number].reshape(self._shape).copy()
                self._buffer = None
                if len(self._spare) < MOST_SPARE:
                    self._spare.append(buffer)
        return self._rows


def wait_for(event: Any) -> None:
    """Wait for an event of a CUDA device, without harm to a graph that another thread captures meanwhile.

    By default a capture ends with an error if any thread of the process waits (``cudaStreamCaptureModeGlobal``), but
    for threads that have declared that they take no part in it.
    """
    exchange, mode = _exchange_mode(), ctypes.c_int(RELAXED)
    if exchange is None:
        event.synchronize()
        return
    exchange(ctypes.byref(mode))
    try:
        event.synchronize()
    finally:
        exchange(ctypes.byref(mode))


@functools.cache
def _exchange_mode() -> Any:
    """Return ``cudaThreadExchangeStreamCaptureMode`` of the runtime that torch has loaded; None if it is not found."""
    try:
        mapped = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
        library = re.search(r"/\S*libcudart[-.\w]*\.so\S*", mapped)
        return None if library is None else ctypes.CDLL(library[0]).cudaThreadExchangeStreamCaptureMode
    except (OSError, AttributeError):
        return None
