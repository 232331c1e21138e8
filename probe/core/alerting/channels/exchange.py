"""One HTTP request of a channel, and the meaning of its outcome for the message."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from typing import Any, Literal
from urllib.parse import urlsplit

from probe.core.alerting.channels.address import AddressError, Destination
from probe.core.alerting.redaction import describe_error, install, redact
from probe.core.http_client import Answer, DeadlineClient, Unanswered, require_httpx

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


def require_client(channel: str) -> None:
    """Import what a channel sends with.

    Raises:
        AddressError: if it is not installed.
    """
    try:
        require_httpx(f"the channel {channel}")
    except ImportError as error:
        raise AddressError([("", str(error))]) from None


def post(
    server: Destination, url: str, body: bytes, timeout: float, headers: Mapping[str, str] | None = None
) -> Answer:
    """Send a JSON ``body`` to ``url`` and return the answer.

    Raises:
        NotReceived: if there is none within ``timeout`` seconds, or its status is not 2xx.
    """
    sent = {"Content-Type": "application/json; charset=utf-8", "User-Agent": "probe", **(headers or {})}
    answer = _exchange(server, "POST", url, timeout, sent, body)
    if not 200 <= answer.status < 300:
        excerpt = answer.body[:MOST_SHOWN].decode("utf-8", "replace").strip()
        text = f"HTTP status {answer.status}: {excerpt}".rstrip(": ")
        raise NotReceived(text, answer.retry_after(LONGEST_WAIT), refusal_of(answer.status))
    return answer


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
    _exchange(server, "HEAD", root, timeout, {"User-Agent": "probe"})


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
        excerpt = answer[:MOST_SHOWN].decode("utf-8", "replace")
        raise NotReceived(f"expected a JSON object as the answer, got {excerpt!r}", refusal="refused")
    return parsed


def _exchange(
    server: Destination, method: str, url: str, timeout: float, headers: Mapping[str, str], body: bytes | None = None
) -> Answer:
    install()  # loggers that were created since the last request are redacted too
    trusted = None if isinstance(server.trusted, bool) else server.trusted
    with closing(DeadlineClient("sending alerts", url, trusted, by_proxy=True)) as client:
        try:
            return client.request(method, url, seconds=timeout, headers=headers, body=body)
        except Unanswered as error:
            reason = describe_error(error.cause).partition("; from ")[0]
            text = f"no answer within {timeout:.3g} s" if error.late else reason
    raise NotReceived(text)
