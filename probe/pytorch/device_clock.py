"""The time of CUDA devices, by events in the stream."""

from __future__ import annotations

from typing import Any

import torch


def capturing() -> bool:
    """Whether a CUDA graph is captured in the current stream. Not asked before CUDA is used: without a driver torch
    raises (2.13), and there is none to ask where none is installed."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def mark() -> Any:
    """A mark in the current stream; None before CUDA is used, and while a graph is captured, which takes no time."""
    if not torch.cuda.is_initialized() or torch.cuda.is_current_stream_capturing():
        return None
    event: Any = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def between(begin: Any, end: Any) -> float:
    """Seconds from mark to mark."""
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3
