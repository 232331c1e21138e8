"""Guard of the pages that our servers show: headers of answers, hosts and origins of requests, a token in a cookie."""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from hashlib import sha256
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qsl, urlencode

from probe.services.listening import host_of, is_loopback

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Permissions of a page: its own files and its server alone."""
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
"""Headers of pages, and of answers that do not name another one of these."""
TOKEN = "token"  # noqa: S105 - a name
"""Parameter of the address that has the token."""
LONGEST_QUERY = 16_384
"""Bytes of the query of an address at most."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


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


def is_same_origin(headers: Mapping[bytes, bytes]) -> bool:
    """Return whether a request comes from a page of this server, or from no page."""
    origin = headers.get(b"origin")
    return origin is None or origin.lower() == b"http://" + headers.get(b"host", b"").lower()


class CookieGate:
    """Application that lets a request through to another if it reads only, names this machine, comes from no other site
    and has the token, once in the address and from then on in a cookie.

    Args:
        inner: the application behind it.
        token: token that is hard to guess.
        cookie: name of the cookie: browsers send one server's cookies to all ports of a machine.
        is_host: returns whether the header ``Host`` is one that this server has.
    """

    def __init__(self, inner: App, token: str, cookie: str, is_host: Callable[[str], bool]) -> None:
        self._inner, self._cookie, self._is_host = inner, cookie, is_host
        self._token, self._expected = token, sha256(token.encode()).digest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "lifespan":
            await self._inner(scope, receive, send)
        elif scope["type"] == "http":
            answer = self._refusal(scope) or self._entry(scope) or self._without_cookie(scope)
            if answer is None:
                await self._inner(scope, receive, _guarded(send))
            else:
                await answer(_guarded(send))

    def _refusal(self, scope: Scope) -> _Answer | None:
        headers = dict(scope["headers"])
        if scope["method"] != "GET":
            return _Answer(405, "expected GET: this server only reads", {b"allow": b"GET"})
        if len(scope["query_string"]) > LONGEST_QUERY:
            return _Answer(414, f"expected an address of at most {LONGEST_QUERY} bytes")
        if not self._is_host(headers.get(b"host", b"").decode("latin-1")):
            return _Answer(403, "expected the header Host with the address that this server printed, or localhost")
        if not is_same_origin(headers):
            return _Answer(403, "expected a request from a page of this server, or from no page: another site sent it")
        return None

    def _entry(self, scope: Scope) -> _Answer | None:
        """Return the answer to the address with the token in it: the same address without it, and the cookie."""
        fields = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        tokens = [value for name, value in fields if name == TOKEN]
        if scope["path"] != "/" or not tokens:
            return None
        if not self._is_token(tokens[0]):
            return _Answer(403, "the token in the address is of another server: open the address that this one printed")
        rest = urlencode([(name, value) for name, value in fields if name != TOKEN])
        cookie = f"{self._cookie}={self._token}; Path=/; HttpOnly; SameSite=Strict"
        return _Answer(303, "", {b"location": f"/?{rest}".rstrip("?").encode(), b"set-cookie": cookie.encode()})

    def _without_cookie(self, scope: Scope) -> _Answer | None:
        sent = dict(scope["headers"]).get(b"cookie", b"").decode("latin-1")
        try:
            cookie = SimpleCookie(sent).get(self._cookie)
        except CookieError:
            cookie = None
        if cookie is not None and self._is_token(cookie.value):
            return None
        return _Answer(403, "expected the cookie of this server: open the address with the token that it has printed")

    def _is_token(self, text: str) -> bool:
        return hmac.compare_digest(sha256(text.encode("utf-8", "surrogateescape")).digest(), self._expected)


class _Answer:
    """Short answer in plain text."""

    def __init__(self, status: int, text: str, headers: Mapping[bytes, bytes] = {}) -> None:
        self._status, self._text, self._headers = status, text, headers

    async def __call__(self, send: Send) -> None:
        body = f"{self._text}\n".encode() if self._text else b""
        fields = {b"content-type": b"text/plain; charset=utf-8", b"content-length": str(len(body)).encode()}
        headers = [*fields.items(), *self._headers.items()]
        await send({"type": "http.response.start", "status": self._status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def _guarded(send: Send) -> Send:
    """Return ``send`` with :data:`HEADERS` on every answer that lacks them."""

    async def sent(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            there = {name.lower() for name, _ in message["headers"]}
            more = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
            message["headers"] = [*message["headers"], *(pair for pair in more if pair[0] not in there)]
        await send(message)

    return sent
