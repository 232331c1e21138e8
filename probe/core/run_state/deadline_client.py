"""HTTP client whose requests end by a deadline, whatever the other side does.

The timeouts of httpx hold for each read alone: a server that sends a byte now and then keeps a request going for ever.
Here every read, write and connection attempt gets the time that the request has left. The name of the host is looked up
by the system, without a limit: requests belong on a thread that nobody waits for.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from probe.core.errors import missing

LARGEST_ANSWER = 1 << 16
"""Most bytes of an answer that are read."""
SCHEMES = ("http", "https")
KEEP_SECONDS = 60.0
"""Longest time in seconds for which a connection is kept without a request."""
PIECE = 1 << 14
"""Bytes that are written before the deadline is checked again."""


class Answer(NamedTuple):
    """Answer to a request."""

    status: int
    headers: Mapping[str, str]
    """Headers by their names in lower case."""
    body: bytes


class Unanswered(Exception):  # noqa: N818 - the reason is in the text
    """Failure to get an answer in time. Its text has neither headers nor paths, which may hold secrets."""


def checked_address(address: str, where: str) -> str:
    """Return ``address`` without a slash at its end.

    Raises:
        ValueError: if it is no address of an HTTP server; the message has no part of it but its scheme.
    """
    expected = f'{where}: expected an address such as "http://10.0.0.1:8765"'
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:
        raise ValueError(f"{expected}, got one that cannot be parsed") from None
    if parts.scheme not in SCHEMES or not parts.hostname or port == 0:
        raise ValueError(f"{expected}, got {parts.scheme or 'no scheme'}://...")
    if parts.username is not None or parts.password is not None:
        raise ValueError(f"{expected}, without user name and password: use a token")
    if not address.isascii() or any(letter <= " " for letter in address):
        raise ValueError(f"{expected}, of printable ASCII characters")
    return address.rstrip("/")


class DeadlineClient:
    """Client for one thread, which keeps its connection. Redirects are not followed, proxies not used.

    Args:
        purpose: clause for the error about a missing package.
        secure: true if it is for https.

    Raises:
        ImportError: if httpx is not installed.
    """

    def __init__(self, purpose: str, secure: bool) -> None:
        try:
            import httpcore  # the part of httpx that speaks HTTP
            import httpx
        except ImportError:
            raise ImportError(missing(purpose, "httpx", "alerts")) from None
        self._backend = _DeadlineBackend(httpcore.SyncBackend())
        network: Any = self._backend
        context = httpx.create_ssl_context() if secure else None  # also reads SSL_CERT_FILE
        self._pool = httpcore.ConnectionPool(
            context, max_connections=1, keepalive_expiry=KEEP_SECONDS, network_backend=network
        )

    def request(
        self,
        method: str,
        url: str,
        *,
        connect_seconds: float,
        seconds: float,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> Answer:
        """Send a request and return its answer, at most :data:`LARGEST_ANSWER` bytes of it.

        Raises:
            Unanswered: if there is no whole answer after ``seconds``, or no connection after ``connect_seconds``.
        """
        self._backend.allow(connect_seconds, seconds)
        host, sent = urlsplit(url).hostname, list((headers or {}).items())
        try:
            with self._pool.stream(method, url, headers=sent, content=body) as response:
                data = b""
                for chunk in response.iter_stream():
                    data += chunk
                    if len(data) > LARGEST_ANSWER:
                        raise Unanswered(f"{host}: an answer of more than {LARGEST_ANSWER} bytes")
                found = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}
                return Answer(response.status, found, data)
        except Unanswered:
            raise
        except Exception as error:  # noqa: BLE001 - the network raises many kinds, whose texts may hold headers
            reason = type(error.__cause__ or error).__name__
            raise Unanswered(f"{host}: {type(error).__name__} ({reason})") from None

    def close(self) -> None:
        """Close the connection."""
        self._pool.close()


class _DeadlineBackend:
    """Network whose operations all end by one deadline."""

    def __init__(self, network: Any) -> None:
        self._network = network
        self._connect_seconds, self._deadline = 0.0, 0.0

    def allow(self, connect_seconds: float, seconds: float) -> None:
        """Set the time that operations have from now on."""
        self._connect_seconds, self._deadline = connect_seconds, time.monotonic() + seconds

    def left(self) -> float:
        """Return the time that is left, at least a millisecond: 0 would mean a socket that does not block."""
        return max(self._deadline - time.monotonic(), 0.001)

    def check(self) -> None:
        """Raise if no time is left."""
        if time.monotonic() >= self._deadline:
            raise TimeoutError("no whole answer in time")

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ARG002 - the deadline takes its place
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> _DeadlineStream:
        """Connect."""
        allowed = min(self._connect_seconds, self.left())
        return _DeadlineStream(self._network.connect_tcp(host, port, allowed, local_address, socket_options), self)

    def sleep(self, seconds: float) -> None:
        """Wait; never called, as nothing is tried twice here."""
        time.sleep(min(seconds, self.left()))


class _DeadlineStream:
    """Connection whose operations all end by the deadline of its network."""

    def __init__(self, stream: Any, backend: _DeadlineBackend) -> None:
        self._stream, self._backend = stream, backend

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ARG002 - see above
        self._backend.check()
        data: bytes = self._stream.read(max_bytes, self._backend.left())
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002 - see above
        for begin in range(0, len(buffer), PIECE):
            self._backend.check()
            self._stream.write(buffer[begin : begin + PIECE], self._backend.left())

    def start_tls(
        self,
        ssl_context: Any,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ARG002 - see above
    ) -> _DeadlineStream:
        self._backend.check()
        return _DeadlineStream(
            self._stream.start_tls(ssl_context, server_hostname, self._backend.left()), self._backend
        )

    def close(self) -> None:
        self._stream.close()

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
