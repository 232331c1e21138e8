"""Gate of a server: checks of each request before its endpoints, in one order, and headers of each answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, urlencode

from starlette.responses import Response

from probe.services.web.answers import HEADERS, refusal
from probe.services.web.listening import is_local_name, is_same_origin
from probe.services.web.tokens import TokenCheck

TOKEN = "token"  # noqa: S105 - a name
"""Parameter of the address that has the token."""
LONGEST_QUERY = 16_384
"""Bytes of the query of an address at most."""
HEALTH = ("/health",)
"""Paths without data, for which no token is needed."""
_HEADERS = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = Mapping[bytes, bytes]
Check = Callable[[Scope, Headers], Response | None]
"""Check of a request: the answer that it gets in place of the endpoint's, or None."""


class Gate:
    """Application that lets a request through to another if its address has a usual length and no check answers it.

    Args:
        inner: the application behind it.
        checks: checks in their order; the first that answers ends a request.
        answered: called with the status of each answer.
    """

    def __init__(self, inner: App, checks: Sequence[Check], answered: Callable[[int], None] | None = None) -> None:
        self._inner, self._checks, self._answered = inner, (_usual_length, *checks), answered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it."""
        if scope["type"] == "lifespan":
            await self._inner(scope, receive, send)
        elif scope["type"] == "http":
            headers = dict(scope["headers"])
            answers = (check(scope, headers) for check in self._checks)
            answer = next((answer for answer in answers if answer is not None), None)
            await (self._inner if answer is None else answer)(scope, receive, self._noting(send))

    def _noting(self, send: Send) -> Send:
        """Return ``send`` with the headers and the call at each answer."""

        async def sent(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                if self._answered is not None:
                    self._answered(message["status"])
                present = {name.lower() for name, _ in message["headers"]}
                missing = [pair for pair in _HEADERS if pair[0] not in present]
                message["headers"] = [*message["headers"], *missing]
            await send(message)

        return sent


def admission(
    token: str | None, server: str, public: Collection[str] = HEALTH, *, to_all: bool = False
) -> Sequence[Check]:
    """Return the checks of a server for programs: of its token; if it has none, that a request names this machine, and
    is of no page of another site.

    Args:
        server: its name in the refusal.
        public: paths that need no token.
        to_all: whether whoever can connect is admitted without a token.
    """
    if token is not None:
        return [_bearer(token, server, public)]
    return [] if to_all else [same_site(is_local_name)]


def _bearer(token: str, server: str, public: Collection[str]) -> Check:
    """Return the check of the token in the header ``Authorization``."""
    expected = TokenCheck(f"Bearer {token}")

    def check(scope: Scope, headers: Headers) -> Response | None:
        if scope["path"] in public or expected.passes(headers.get(b"authorization", b"")):
            return None
        return refusal(401, f"expected the token of this {server}", {"WWW-Authenticate": "Bearer"})

    return check


def _usual_length(scope: Scope, _: Headers) -> Response | None:
    """Check that an address has a usual length."""
    if len(scope["query_string"]) > LONGEST_QUERY:
        return refusal(414, f"expected an address of at most {LONGEST_QUERY} bytes")
    return None


def reads_only(scope: Scope, _: Headers) -> Response | None:
    """Check that a request only reads."""
    if scope["method"] != "GET":
        return refusal(405, "expected GET: this server only reads", {"Allow": "GET"})
    return None


def same_site(is_host: Callable[[str], bool]) -> Check:
    """Return the check that a request names this server, and comes from no page of another site: such a page can make a
    browser here send requests, also under a name of its own that resolves to this machine.

    Args:
        is_host: returns whether the header ``Host`` is one that this server has.
    """

    def check(scope: Scope, headers: Headers) -> Response | None:
        if not is_host(headers.get(b"host", b"").decode("latin-1")):
            return refusal(403, "expected the header Host with the address that this server printed, or localhost")
        if not is_same_origin(headers, scope["scheme"]):
            return refusal(403, "expected a request from a page of this server, or from no page: another site sent it")
        return None

    return check


def token_cookie(token: str, cookie: str) -> Check:
    """Return the check of the token of a page: once in the address, and from then on in a cookie.

    Args:
        cookie: name of the cookie: browsers send one server's cookies to all ports of a machine.
    """
    expected = TokenCheck(token)

    def check(scope: Scope, _: Headers) -> Response | None:
        fields = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        tokens = [value for name, value in fields if name == TOKEN]
        if scope["path"] == "/" and tokens:
            if not expected.passes(tokens[0].encode("utf-8", "surrogateescape")):
                sentence = "the token in the address is of another server: open the address that this one printed"
                return refusal(403, sentence)
            return _entry(fields, f"{cookie}={token}; Path=/; HttpOnly; SameSite=Strict")
        if any(map(expected.passes, _cookies(scope, cookie.encode()))):
            return None
        return refusal(403, "expected the cookie of this server: open the address with the token that it has printed")

    return check


def _cookies(scope: Scope, name: bytes) -> Iterator[bytes]:
    """Yield the values of a cookie. Browsers send the cookies of all programs on a machine, of any form, at which the
    parser of the standard library gives up."""
    for header, value in scope["headers"]:
        if header == b"cookie":
            for pair in value.split(b";"):
                key, _, text = pair.partition(b"=")
                if key.strip() == name:
                    yield text.strip()


def _entry(fields: Iterable[tuple[str, str]], cookie: str) -> Response:
    """Return the answer to an address with the token in it: the same address without it, and the cookie."""
    rest = urlencode([(name, value) for name, value in fields if name != TOKEN])
    return Response(status_code=303, headers={"Location": f"/?{rest}".rstrip("?"), "Set-Cookie": cookie})
