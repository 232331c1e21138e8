"""Sockets, signals and tokens of the servers beside training."""

from __future__ import annotations

import errno
import hashlib
import hmac
import ipaddress
import resource
import signal
import socket
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import uvicorn

BACKLOG = 2_048
"""Most connections that wait to be accepted."""
FEWEST = 16
"""Least number of characters of a token."""


class ServerError(Exception):
    """Error of a server that cannot start, for the person who starts it."""


def check_token(token: str) -> None:
    """Check that ``token`` can be sent in a header and is hard to guess.

    Raises:
        ServerError: if not.
    """
    if len(token) < FEWEST or not token.isascii() or any(letter <= " " for letter in token):
        raise ServerError(
            f"token: expected at least {FEWEST} printable ASCII characters without spaces, got "
            f"{len(token)} characters; make one with: openssl rand -hex 32"
        )


def secret_in(file: Path, option: str) -> str:
    """Return the secret in ``file``, which is one line; no message has any of it.

    Raises:
        ServerError: if it cannot be read, has another form, or if every user of this machine can read it.
    """
    try:
        found = file.stat()
        if not stat.S_ISREG(found.st_mode):
            raise ServerError(f"{option} {file}: expected a regular file")
        if found.st_mode & stat.S_IROTH:
            raise ServerError(f"{option} {file}: every user of this machine can read it; run: chmod 600 {file}")
        text = file.read_text(encoding="utf-8").strip()
    except UnicodeDecodeError:
        raise ServerError(f"{option} {file}: expected UTF-8") from None
    except OSError as error:
        raise ServerError(f"{option} {file}: cannot be read: {error.strerror}") from None
    if not text or "\n" in text:
        raise ServerError(f"{option} {file}: expected one line")
    return text


class TokenCheck:
    """Check of the header of a request against a token, in a time that depends on neither's length."""

    def __init__(self, token: str) -> None:
        self._expected = _digest(f"Bearer {token}".encode())

    def passes(self, headers: Mapping[bytes, bytes]) -> bool:
        """Return whether ``headers`` have the token."""
        return hmac.compare_digest(_digest(headers.get(b"authorization", b"")), self._expected)


def _digest(text: bytes) -> bytes:
    return hashlib.sha256(text).digest()


def is_loopback(host: str) -> bool:
    """Return whether ``host`` is this machine."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_of(header: str) -> str:
    """Return the host of the header ``Host`` without its port."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0].lower()


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
            taken = error.errno == errno.EADDRINUSE
            advice = "another program listens there; choose another --port" if taken else error.strerror or str(error)
            raise ServerError(f"--host {host} --port {port}: cannot listen: {advice}") from None
        yield listening
    finally:
        listening.close()


def address_of(listening: socket.socket) -> str:
    """Return the address at which ``listening`` accepts connections."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@contextmanager
def ended_by_signals(server: uvicorn.Server) -> Iterator[None]:
    """End the server at SIGTERM and SIGINT. uvicorn raises a signal again after it has ended: nothing happens then."""

    def end(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the interface of handlers
        server.should_exit = True

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def raise_limit_of_files(wanted: int) -> None:
    """Permit ``wanted`` open files, as far as the system lets us."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
