"""HTTP client whose requests end by a deadline, whatever the other side does.

The timeouts of httpx hold for each read alone: a server that sends a byte now and then keeps a request going for ever.
Here every read, write and connection attempt gets the time that the request has left. The name of the host is looked up
by the system, without a limit: requests belong on a thread that nobody waits for.
"""

from __future__ import annotations

import base64
import ssl
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from probe.core.errors import needed

LARGEST_ANSWER = 1 << 16
"""Most bytes of an answer that are read; what follows is left out."""
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

    def retry_after(self, most: float) -> float | None:
        """Return the seconds, at most ``most``, after which the server wants to be asked again: ``Retry-After`` is a
        number or a date (RFC 9110, 10.2.3). None if it has none that can be parsed."""
        text = self.headers.get("retry-after", "").strip()
        with suppress(ValueError, OverflowError):
            seconds = float(text) if text.isdecimal() else parsedate_to_datetime(text).timestamp() - time.time()
            return min(max(seconds, 0.0), most)
        return None


class Unanswered(Exception):  # noqa: N818 - the reason is in the text
    """Failure to get an answer in time. Its text has neither headers nor paths, which may hold secrets.

    Args:
        cause: the error of the network, whose text may have them.
        late: true if the time was over.
    """

    def __init__(self, text: str, cause: Exception, late: bool) -> None:
        super().__init__(text)
        self.cause, self.late = cause, late


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


def require_httpx(purpose: str) -> None:
    """Import httpx.

    Raises:
        ImportError: if it is not installed, with what needs it.
    """
    with needed(purpose, "alerts"):
        for package in ("httpx", "httpcore"):  # the one that the extra names, and the part of it that speaks HTTP
            import_module(package)


class DeadlineClient:
    """Client of one server for one thread, which keeps its connection. Redirects are not followed.

    Args:
        purpose: clause for the error about a missing package.
        address: of the server; of every request the scheme, the host and the port.
        trusted: certificates that are trusted; None: those of the public authorities, or of SSL_CERT_FILE.
        by_proxy: whether the proxy is used that the environment names for the server.

    Raises:
        ImportError: if httpx is not installed.
    """

    def __init__(
        self, purpose: str, address: str, trusted: ssl.SSLContext | None = None, *, by_proxy: bool = False
    ) -> None:
        require_httpx(purpose)
        import httpcore

        self._address, self._trusted, self._by_proxy = address, trusted, by_proxy
        self._backend = _DeadlineBackend(httpcore.SyncBackend())
        self._pool: Any = None

    def request(
        self,
        method: str,
        url: str,
        *,
        seconds: float,
        connect_seconds: float | None = None,
        headers: Mapping[str, str] = {},
        body: bytes | None = None,
    ) -> Answer:
        """Send a request and return its answer, at most :data:`LARGEST_ANSWER` bytes of it.

        Raises:
            Unanswered: if there is no whole answer after ``seconds``, or no connection after ``connect_seconds``.
        """
        import httpcore
        import httpx

        self._backend.allow(seconds if connect_seconds is None else connect_seconds, seconds)
        try:
            if self._pool is None:
                self._pool = self._connections()
            sent = [*{**headers, **_credentials(httpx.URL(url))}.items()]
            with self._pool.stream(method, _core_url(httpx.URL(url)), headers=sent, content=body) as response:
                data = b""
                for chunk in response.iter_stream():
                    data += chunk
                    if len(data) >= LARGEST_ANSWER:
                        break
                answer_headers = {
                    name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers
                }
                return Answer(response.status, answer_headers, data[:LARGEST_ANSWER])
        except Exception as error:  # noqa: BLE001 - the network raises many kinds, whose texts may hold headers
            text = f"{urlsplit(url).hostname}: {type(error).__name__} ({type(error.__cause__ or error).__name__})"
            late = isinstance(error, TimeoutError | httpcore.TimeoutException)
            raise Unanswered(text, error, late) from None

    def close(self) -> None:
        """Close the connection."""
        if self._pool is not None:
            self._pool.close()

    def _connections(self) -> Any:
        """Return the pool of connections, which has one, to the server or to the proxy."""
        import httpcore
        import httpx

        secure = urlsplit(self._address).scheme == "https"
        shared: dict[str, Any] = {
            "ssl_context": (self._trusted or _public_authorities()) if secure else None,
            "max_connections": 1,
            "keepalive_expiry": KEEP_SECONDS,
            "network_backend": self._backend,
        }
        address = _proxy_for(self._address) if self._by_proxy else None
        if address is None:
            return httpcore.ConnectionPool(**shared)
        proxy = httpx.Proxy(address)
        shared.update(proxy_url=_core_url(proxy.url), proxy_auth=proxy.raw_auth)
        return (httpcore.SOCKSProxy if proxy.url.scheme.startswith("socks") else httpcore.HTTPProxy)(**shared)


def _proxy_for(address: str) -> str | None:
    """Return the address of the proxy that the environment names for the server at ``address``, unless ``NO_PROXY``
    names that server."""
    from urllib.request import getproxies, proxy_bypass

    parts, proxies = urlsplit(address), getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or proxy_bypass(parts.hostname or ""):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _core_url(url: Any) -> Any:
    """Return a URL of httpx, which encodes names of hosts and paths, as httpcore has it."""
    import httpcore

    return httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)


def _credentials(url: Any) -> Mapping[str, str]:
    """Return the header for the user and the password in an address, if it has them."""
    if not url.userinfo:
        return {}
    return {"Authorization": f"Basic {base64.b64encode(f'{url.username}:{url.password}'.encode()).decode()}"}


@cache
def _public_authorities() -> ssl.SSLContext:
    """Return the certificates of the public authorities, which take longer to load than a request to send."""
    import httpx

    return httpx.create_ssl_context()


class _DeadlineBackend:
    """Network whose operations all end by one deadline."""

    def __init__(self, network: Any) -> None:
        self._network = network
        self._connect_seconds, self._deadline = 0.0, 0.0

    def allow(self, connect_seconds: float, seconds: float) -> None:
        """Set the time that operations have from now on."""
        self._connect_seconds, self._deadline = connect_seconds, time.monotonic() + seconds

    def left(self) -> float:
        """Return the time that is left.

        Raises:
            TimeoutError: if there is none.
        """
        seconds = self._deadline - time.monotonic()
        if seconds <= 0:
            raise TimeoutError("no whole answer in time")
        return seconds

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


class _DeadlineStream:
    """Connection whose operations all end by the deadline of its network."""

    def __init__(self, stream: Any, backend: _DeadlineBackend) -> None:
        self._stream, self._backend = stream, backend

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ARG002 - see above
        data: bytes = self._stream.read(max_bytes, self._backend.left())
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002 - see above
        for begin in range(0, len(buffer), PIECE):
            self._stream.write(buffer[begin : begin + PIECE], self._backend.left())

    def start_tls(
        self,
        ssl_context: Any,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ARG002 - see above
    ) -> _DeadlineStream:
        seconds = self._backend.left()
        return _DeadlineStream(self._stream.start_tls(ssl_context, server_hostname, seconds), self._backend)

    def close(self) -> None:
        self._stream.close()

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
