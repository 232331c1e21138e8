"""Who is calling: what a framework does not tell, the stack does."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType


def callers() -> Iterator[FrameType]:
    """The frames of the functions that led here, the nearest first.

    Those of other threads are no business of ours: ``sys._current_frames`` may wait for ever, and give frames that are
    gone by then (Python 3.11, https://github.com/python/cpython/issues/106883).
    """
    frame = sys._getframe(1).f_back
    while frame is not None:
        yield frame
        frame = frame.f_back
