"""Waiting for what another thread or process does, and ports that are free."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any, TypeVar

PATIENCE = 180.0
"""Seconds after which something that must happen counts as missing."""
Found = TypeVar("Found")


def wait_for(find: Callable[[], Found], process: Any = None, about: str = "it does not happen") -> Found:
    """The first true value of ``find()``.

    Args:
        process: one without which it cannot happen.
    """
    deadline = time.monotonic() + PATIENCE
    while not (found := find()):
        assert time.monotonic() < deadline, about
        assert process is None or process.poll() is None, "the process has ended"
        time.sleep(0.01)  # between two looks
    return found


def free_port() -> int:
    """A port that the system has just assigned."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
    return port
