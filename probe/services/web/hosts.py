"""Names of hosts in requests: by another name a page of another site can reach this machine from a browser here."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping


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
