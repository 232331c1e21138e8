"""Ctrl-C at a known place: within a call, once that waits."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

import pytest

PAUSE_SECONDS = 0.01


def interrupt(call: Callable[[], object], waits: Callable[[], bool]) -> None:
    """Call ``call`` in the main thread, and interrupt it as Ctrl-C does once ``waits`` returns true; at no other place,
    where it would end the tests.

    Args:
        waits: called on another thread.
    """
    over, main = threading.Event(), threading.main_thread()

    def handle(_: int, frame: FrameType | None) -> None:
        if not over.is_set() and any(above.f_code is inside.__code__ for above in _frames(frame)):
            raise KeyboardInterrupt

    def inside() -> None:
        call()

    def watch() -> None:
        while not over.wait(PAUSE_SECONDS):
            if waits():
                signal.pthread_kill(main.ident or 0, signal.SIGINT)

    before = signal.signal(signal.SIGINT, handle)
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            inside()
    finally:
        over.set()
        watcher.join()
        signal.signal(signal.SIGINT, before)


def main_thread_runs(function: str) -> bool:
    """Return whether a function of this name is on the stack of the main thread."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return any(above.f_code.co_name == function for above in _frames(frame))


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back
