"""Sockets on which servers accept connections."""

from __future__ import annotations

import errno
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager

BACKLOG = 2_048
"""Most connections that wait to be accepted."""


class ServerError(Exception):
    """Error of a server that cannot start, for the person who starts it."""


@contextmanager
def bound(host: str, port: int) -> Iterator[socket.socket]:
    """Listen on ``host`` and ``port``.

    Raises:
        ServerError: if that is not possible.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol by name: asyncio switches Nagle's algorithm off, which delays each answer by 40 ms, only where it is.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, port))
            listening.listen(BACKLOG)
        except OSError as error:
            is_in_use = error.errno == errno.EADDRINUSE
            advice = (
                "another program listens there; choose another --port" if is_in_use else error.strerror or str(error)
            )
            raise ServerError(f"--host {host} --port {port}: cannot listen: {advice}") from None
        yield listening
    finally:
        listening.close()


def address_of(listening: socket.socket) -> str:
    """Return the address at which ``listening`` accepts connections."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def raise_limit_of_files(number: int) -> None:
    """Permit ``number`` open files, as far as the system lets us."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < number:
        most = number if hard == resource.RLIM_INFINITY else min(hard, number)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
