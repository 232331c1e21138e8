"""Requests to a server by a client that is not ours."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from tests.waiting import PATIENCE


def exchange(
    address: str,
    method: str,
    path: str,
    body: Any = None,
    headers: Mapping[str, str] = {},
    tls: ssl.SSLContext | None = None,
) -> tuple[int, http.client.HTTPMessage, bytes]:
    """Status, headers and content of an answer. A body that is no ``bytes`` is sent in chunks, as JSON both."""
    place = urlsplit(address).netloc
    if tls is None:
        connection = http.client.HTTPConnection(place, timeout=PATIENCE)
    else:
        connection = http.client.HTTPSConnection(place, timeout=PATIENCE, context=tls)
    sent = {**({} if body is None else {"Content-Type": "application/json"}), **headers}
    try:
        connection.request(method, path, body, sent, encode_chunked=not isinstance(body, bytes | None))
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def bearer(token: str | None) -> dict[str, str]:
    """The header of a request with a token; none without one."""
    return {"Authorization": f"Bearer {token}"} if token else {}
