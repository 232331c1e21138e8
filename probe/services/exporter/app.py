"""Endpoints of the exporter: ``/metrics`` and ``/health``."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from probe.services.exporter.node_page import NodePage
from probe.services.listening import TokenCheck, host_of, is_loopback

HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


def application(page: NodePage, token: str | None, *, local: bool) -> ScrapeGate:
    """Return the ASGI application of the exporter.

    Args:
        page: its page.
        token: token that requests carry; None if none is needed.
        local: whether only this machine can connect.
    """

    async def metrics(request: Request) -> Response:
        content, kind = await page.text(request.headers.get("accept", ""))
        return Response(content, headers={**HEADERS, "Content-Type": kind})

    async def health(_: Request) -> Response:
        return _json(200, {"status": "ok", "hung": page.hung})

    routes = [Route("/metrics", metrics), Route("/health", health)]
    return ScrapeGate(Starlette(routes=routes), token, local=local)


class ScrapeGate:
    """Check of each request before the endpoints: the token, or, without one, the name of this machine."""

    def __init__(self, inner: Starlette, token: str | None, *, local: bool) -> None:
        self._inner, self._local = inner, local
        self._token = None if token is None else TokenCheck(token)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        await (refusal or self._inner)(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = dict(scope["headers"])
        if self._token is not None:
            if scope["path"] != "/health" and not self._token.passes(headers):
                refusal = _json(401, {"error": "expected the token of this exporter"})
                refusal.headers["WWW-Authenticate"] = "Bearer"
                return refusal
        elif self._local and not is_loopback(host_of(headers.get(b"host", b"").decode("latin-1"))):
            # A page of another site can make a browser here send requests, under a name that resolves to this machine.
            return _json(403, {"error": "expected the host name localhost or a loopback address"})
        return None


def _json(status: int, body: object) -> Response:
    return Response(json.dumps(body), status, headers=HEADERS, media_type="application/json")
