"""Sockets on which servers accept connections."""

from __future__ import annotations

import errno
import ipaddress
import resource
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from probe.core.fields import host_and_port
from probe.core.language import Message, MessageError, joined, message

_HIGHEST = 65_535
"""The highest port."""
BACKLOG = 2_048
"""Most connections that wait to be accepted."""


class ServerError(MessageError):
    """Error of a server that cannot start, for the person who starts it."""


def parsed_address(text: str, port: int = 0) -> tuple[str, int]:
    """Parse ``HOST:PORT``, ``[HOST]:PORT``, ``HOST``, ``:PORT`` or ``PORT``.

    Args:
        port: of a text that has none.

    Raises:
        ServerError: if it is none of these.
    """
    if (address := host_and_port(text)) is not None:
        return address
    if (last := text.rpartition(":")[2]).isdecimal() and (len(last) > 5 or int(last) > _HIGHEST):
        raise ServerError("--listen {text}: expected a port from 0 to 65535, got {port}", text=text, port=last)
    bare, usual = text.removeprefix(":").isdecimal(), "127.0.0.1"
    host, number = (usual, int(text.removeprefix(":"))) if bare else (text.strip("[]") or usual, port)
    is_host = ":" not in host or _is_version_6(host)
    if not (bare or is_host) or not text:
        raise ServerError("--listen {text}: expected HOST:PORT, such as 127.0.0.1:8090 or 0.0.0.0:8090", text=text)
    return host, number


def _is_version_6(host: str) -> bool:
    try:
        socket.inet_pton(socket.AF_INET6, host)
    except OSError:
        return False
    return True


def address_asked_for(listen: str, usual: int, host: str | None, port: int | None) -> tuple[str, int]:
    """Return the host and port of ``listen``, in place of which older calls name ``host`` and ``port``.

    Args:
        usual: port if ``listen`` has none.

    Raises:
        ServerError: if ``listen`` is no address.
    """
    named_host, named_port = parsed_address(listen, usual)
    return host or named_host, named_port if port is None else port


def _text(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _reason(error: OSError) -> Message:
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return message("this machine has no such address; expected HOST:PORT, such as 127.0.0.1:8090")
    if error.errno == errno.EADDRINUSE:
        return message("another program listens there; choose another port")
    if error.errno == errno.EACCES:
        return message("ports below 1024 are the administrator's; choose a higher one")
    return joined("", [error.strerror or str(error)])


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
            raise ServerError(
                "--listen {at}: cannot listen: {reason}", at=_text(host, port), reason=_reason(error)
            ) from None
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


def is_local_name(header: str) -> bool:
    """Return whether the header ``Host`` names this machine by loopback: a page of another site can make a browser here
    send requests under a name of its own that resolves to this machine."""
    return is_loopback(host_of(header))


def is_own_name(header: str) -> bool:
    """Return whether the header ``Host`` is an address, or a name of this machine; that of another site is neither."""
    host = host_of(header)
    if host == "localhost" or host in {socket.gethostname().lower(), socket.getfqdn().lower()}:
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_same_origin(headers: Mapping[bytes, bytes], scheme: str) -> bool:
    """Return whether a request by ``scheme`` comes from a page of this server, or from no page."""
    origin = headers.get(b"origin")
    return origin is None or origin.lower() == scheme.encode() + b"://" + headers.get(b"host", b"").lower()
