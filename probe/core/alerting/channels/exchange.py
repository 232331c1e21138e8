"""One HTTP request with a deadline for the whole of it, of which httpx bounds each part alone."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from functools import cache
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

from probe.core.alerting.channels.address import AddressError, Destination
from probe.core.alerting.redaction import describe_error, install, redact
from probe.core.errors import missing

LARGEST = 64 * 1024
"""Most bytes that are read of an answer."""
LONGEST_WAIT = 3600.0
"""Longest time in seconds that ``Retry-After`` is obeyed."""
MOST_SHOWN = 200
"""Most characters of an answer that an error shows."""


Refusal = Literal["none", "refused", "final"]
"""Meaning of a failure for the message: none, since the receiver gave no answer or asks for a pause; that it was
not accepted, perhaps only now; that it never will be, as its content is wrong."""
NEVER = (400, 413, 415, 422)
"""Statuses of HTTP by which a message is refused for good (RFC 9110, 15.5)."""
LATER = (408, 425, 429, 502, 503, 504)
"""Statuses that are about the receiver or the way to it, whatever the message."""


class NotReceived(Exception):  # noqa: N818 - a fact about an alert
    """Failure to deliver; its text is free of secrets.

    Args:
        retry_after: time in seconds before which the receiver refuses to be asked again.
        refusal: what it says about the message.
    """

    def __init__(self, text: str, retry_after: float | None = None, refusal: Refusal = "none") -> None:
        super().__init__(redact(text))
        self.retry_after, self.refusal = retry_after, refusal


class Received(NamedTuple):
    """Answer of a receiver that has accepted a message."""

    status: int
    content: bytes
    """Its first :data:`LARGEST` bytes."""


def require_httpx(channel: str) -> None:
    """Import httpx.

    Raises:
        AddressError: if it is not installed.
    """
    try:
        import httpcore  # noqa: F401 - which httpx imports at its first request
        import httpx  # noqa: F401
    except ImportError:
        raise AddressError([("", missing(f"the channel {channel}", "httpx", "alerts"))]) from None


def post(server: Destination, url: str, body: bytes, timeout: float, headers: Mapping[str, str] | None = None) -> bytes:
    """Send a JSON ``body`` to ``url`` and return the content of the answer.

    Raises:
        NotReceived: as for :func:`posted`.
    """
    return posted(server, url, body, timeout, headers).content


def posted(
    server: Destination, url: str, body: bytes, timeout: float, headers: Mapping[str, str] | None = None
) -> Received:
    """Send a JSON ``body`` to ``url`` and return the answer.

    Raises:
        NotReceived: if there is none within ``timeout`` seconds, or its status is not 2xx.
    """
    sent = {"Content-Type": "application/json; charset=utf-8", "User-Agent": "probe", **(headers or {})}
    status, received, answer = _exchange(server, "POST", url, timeout, sent, body)
    if not 200 <= status < 300:
        shown = answer[:MOST_SHOWN].decode("utf-8", "replace").strip()
        raise NotReceived(f"HTTP status {status}: {shown}".rstrip(": "), retry_after(received), refusal_of(status))
    return Received(status, answer)


def refusal_of(status: int) -> Refusal:
    """Return what a status other than 2xx says about a message."""
    return "final" if status in NEVER else "none" if status in LATER else "refused"


def ask(server: Destination, timeout: float) -> None:
    """Check that the server answers at all, whatever it answers, by a request without content for its root.

    Raises:
        NotReceived: if it does not.
    """
    parts = urlsplit(server.url)
    root = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/"
    _exchange(server, "HEAD", root, timeout, {"User-Agent": "probe"}, b"")


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Parse ``Retry-After``: seconds, or a date (RFC 9110, 10.2.3); None if there is none that can be parsed."""
    text = headers.get("retry-after", "").strip()
    with suppress(ValueError, OverflowError):
        seconds = float(text) if text.isdecimal() else parsedate_to_datetime(text).timestamp() - time.time()
        return min(max(seconds, 0.0), LONGEST_WAIT)
    return None


def json_object(answer: bytes) -> Mapping[str, Any]:
    """Parse an answer.

    Raises:
        NotReceived: if it is no JSON object.
    """
    try:
        parsed = json.loads(answer)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        shown = answer[:MOST_SHOWN].decode("utf-8", "replace")
        raise NotReceived(f"expected a JSON object as the answer, got {shown!r}", refusal="refused")
    return parsed


def _exchange(
    server: Destination, method: str, url: str, timeout: float, headers: Mapping[str, str], body: bytes
) -> tuple[int, Mapping[str, str], bytes]:
    import httpx

    install()  # loggers that were created since the last request are redacted too
    answer = b""
    with _Deadline(timeout) as deadline:
        try:
            with (
                httpx.Client(verify=_trust(server), timeout=timeout) as client,
                client.stream(
                    method, url, content=body, headers=dict(headers), extensions={"trace": deadline.watch}
                ) as response,
            ):
                for piece in response.iter_raw():
                    answer += piece
                    if len(answer) >= LARGEST:
                        break
        except Exception as error:  # noqa: BLE001 - its text may hold the address: it goes no further
            is_late = deadline.over or isinstance(error, httpx.TimeoutException)  # either may come first
            text = f"no answer within {timeout:.3g} s" if is_late else _short(error)
        else:
            if not deadline.over:  # an answer without a length may end where the deadline has cut it
                return response.status_code, response.headers, answer[:LARGEST]
            text = f"no whole answer within {timeout:.3g} s"
    raise NotReceived(text)


def _trust(server: Destination) -> ssl.SSLContext:
    return _public_authorities() if isinstance(server.trusted, bool) else server.trusted


@cache
def _public_authorities() -> ssl.SSLContext:
    """Return the certificates of the public authorities, which take longer to load than a request to send."""
    import httpx

    return httpx.create_ssl_context()


def _short(error: BaseException) -> str:
    return describe_error(error).partition("; from ")[0]


class _Deadline:
    """Deadline of a request, at which its sockets are shut down: that ends any wait for them."""

    def __init__(self, seconds: float) -> None:
        self.over = False
        self._sockets: list[socket.socket] = []
        self._timer = threading.Timer(max(seconds, 0.0), self._end)
        self._timer.daemon = True

    def __enter__(self) -> _Deadline:
        with suppress(RuntimeError):  # without a thread, the limits of single reads remain
            self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def watch(self, event: str, info: Mapping[str, Any]) -> None:
        """Note each socket that is opened: the callback ``trace`` of httpcore."""
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            self._sockets.append(info["return_value"].get_extra_info("socket"))
            if self.over:
                self._end()

    def _end(self) -> None:
        self.over = True
        for each in self._sockets:
            with suppress(OSError):
                socket.socket.shutdown(each, socket.SHUT_RDWR)  # not that of SSLSocket, which changes its state
