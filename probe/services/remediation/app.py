"""Endpoints of the service: tokens, sizes and types of requests are checked here, before anything is read."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import anyio
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from probe.core.alerting.redaction import describe_error
from probe.services.listening import TokenCheck, host_of, is_loopback
from probe.services.remediation.metrics import CONTENT_TYPE, exposition
from probe.services.remediation.service import RemediationService

_log = logging.getLogger("probe.remediation")

MOST_BYTES = 4 << 20
"""Most bytes of a body."""
MOST_READING = 32 << 20
"""Most bytes of all bodies that are read at one time."""
BODY_SECONDS = 10.0
"""Longest time in seconds in which a body arrives."""
PUBLIC = ("/health",)
"""Paths without data: no token is needed."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


def application(service: RemediationService) -> WebhookGate:
    """Return the ASGI application of the service."""
    endpoints = WebhookEndpoints(service)
    routes = [
        Route("/webhook", endpoints.webhook, methods=["POST"]),
        Route("/history", endpoints.history),
        Route("/health", endpoints.health),
        Route("/metrics", endpoints.metrics),
    ]
    inner = Starlette(routes=routes, exception_handlers={HTTPException: _failure, Exception: _internal})
    return WebhookGate(inner, service)


class WebhookGate:
    """Check of each request before the endpoints: the token; without one and without certificates of clients, that it
    was sent to this machine."""

    def __init__(self, inner: Starlette, service: RemediationService) -> None:
        self._inner, self._service = inner, service
        options = service.options
        self._token = None if options.token is None else TokenCheck(options.token)
        tls = options.settings.tls
        self._known_clients = tls is not None and tls.client_ca is not None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            return

        async def counted(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                self._service.counts["requests", str(message["status"])] += 1
            await send(message)

        refusal = self._refusal(scope)
        await (self._inner if refusal is None else refusal)(scope, receive, counted)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = dict(scope["headers"])
        if self._token is not None:
            if scope["path"] in PUBLIC or self._token.passes(headers):
                return None
            refusal = _json(401, {"error": "expected the token of this service"})
            refusal.headers["WWW-Authenticate"] = "Bearer"
            return refusal
        # A page of another site can make a browser here send requests, under a name that resolves to this machine.
        if self._known_clients or is_loopback(host_of(headers.get(b"host", b"").decode("latin-1"))):
            return None
        return _json(403, {"error": "expected the host name localhost or a loopback address"})


class WebhookEndpoints:
    """Functions of the paths."""

    def __init__(self, service: RemediationService) -> None:
        self._service = service
        self._reading = 0

    async def webhook(self, request: Request) -> Response:
        """Admit alerts."""
        refusal = _unreadable(request)
        if refusal is not None:
            return refusal
        try:
            with anyio.fail_after(BODY_SECONDS):
                data = await self._body(request)
        except TimeoutError:
            return _json(408, {"error": f"expected the whole body within {BODY_SECONDS:g} s"}, close=True)
        except ClientDisconnect:
            return Response(status_code=400)
        except BufferError:
            return _json(503, {"error": "too many bodies at one time"}, retry_after=1, close=True)
        if data is None:
            return _too_large()
        reply = await run_in_threadpool(self._service.receive, data)
        return _json(reply.status, reply.body, retry_after=reply.retry_after)

    async def _body(self, request: Request) -> bytes | None:
        """Read the body; None if it is too large."""
        parts, size = list[bytes](), 0
        try:
            async for part in request.stream():
                size += len(part)
                self._reading += len(part)
                if size > MOST_BYTES:
                    return None
                if self._reading > MOST_READING:
                    raise BufferError
                parts.append(part)
            return b"".join(parts)
        finally:
            self._reading -= size

    async def history(self, _: Request) -> Response:
        """Return the last entries."""
        return _json(200, await run_in_threadpool(self._service.history))

    async def health(self, _: Request) -> Response:
        """Return whether actions can be recorded and carried out."""
        works = await run_in_threadpool(self._service.works)
        return _json(200 if works else 503, {"status": "ok" if works else "actions cannot be recorded or carried out"})

    async def metrics(self, _: Request) -> Response:
        """Return the numbers of the service for Prometheus."""
        return Response(exposition(self._service), headers={"Content-Type": CONTENT_TYPE})


def _unreadable(request: Request) -> Response | None:
    """Return the refusal of a request whose body is not worth reading. Its type matters, since a browser asks before it
    sends JSON to another site."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        return _json(415, {"error": "expected Content-Type: application/json"})
    if "content-encoding" in request.headers:
        return _json(415, {"error": "expected no Content-Encoding"})
    declared = request.headers.get("content-length", "0")
    if not declared.isdecimal() or len(declared) > 18 or int(declared) > MOST_BYTES:
        return _too_large()
    return None


def _too_large() -> Response:
    return _json(413, {"error": f"expected a body of at most {MOST_BYTES} bytes; set max_alerts in webhook_configs"})


def _json(status: int, body: object, *, retry_after: int | None = None, close: bool = False) -> Response:
    """Return an answer; ``close`` ends the connection."""
    response = Response(json.dumps(body, separators=(",", ":")), status, media_type="application/json")
    response.headers["Cache-Control"] = "no-store"
    response.headers["X-Content-Type-Options"] = "nosniff"
    if retry_after is not None:
        response.headers["Retry-After"] = str(retry_after)
    if close:
        response.headers["Connection"] = "close"
    return response


async def _failure(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _json(error.status_code, {"error": error.detail})


async def _internal(_: Request, error: Exception) -> Response:
    _log.error("internal error: %s", describe_error(error))
    return _json(500, {"error": "internal error"})
