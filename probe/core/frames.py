"""Who is calling: what a framework does not tell, the stack does."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType


def callers() -> Iterator[FrameType]:
    """The frames of the functions that led here, the nearest first."""
    yield from _below(sys._getframe(1).f_back)


def running() -> Iterator[FrameType]:
    """The frames of all functions that run on any thread."""
    for latest in sys._current_frames().values():
        yield from _below(latest)


def _below(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back
