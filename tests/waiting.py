"""Waiting for what another thread or process does, and ports that are free."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

PATIENCE = 180.0
"""Seconds after which something that must happen counts as missing."""
FIRST_PORT = 10_000
"""Servers that a machine has by itself are below it."""
ASSIGNED = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""The ports of connections, and of servers that ask for any."""
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
    """A port that nobody has, for TCP and UDP, below those that the system assigns.

    One of the system's range can be assigned to the connection of another process before it is used here.
    """
    first, last = FIRST_PORT, int(ASSIGNED.read_text().split()[0])
    assert last > first, f"no port is left below those that the system assigns: {ASSIGNED} begins at {last}"
    while True:
        port = random.SystemRandom().randrange(first, last)  # the same to nobody: tests set the seed of `random`
        with socket.socket() as stream, socket.socket(type=socket.SOCK_DGRAM) as datagram:
            try:
                stream.bind(("127.0.0.1", port))
                datagram.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
