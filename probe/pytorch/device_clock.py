"""Clock of CUDA devices, by events in the stream."""

from __future__ import annotations

from typing import Any

import torch

from probe.pytorch.host_copies import wait_for


def capturing() -> bool:
    """Return whether a CUDA graph is captured in the current stream; False before CUDA is used, since torch raises
    without a driver (2.13)."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def mark() -> Any:
    """Return a mark in the current stream; None before CUDA is used, and during capture, when no kernel runs."""
    if not torch.cuda.is_initialized() or torch.cuda.is_current_stream_capturing():
        return None
    event: Any = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def between(begin: Any, end: Any) -> float:
    """Return the seconds from mark to mark."""
    wait_for(end)
    return float(begin.elapsed_time(end)) / 1e3
