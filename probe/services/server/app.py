"""Endpoints of the server: tokens, sizes and types of requests are checked here, before anything is read."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

import anyio
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from probe.core.run_state.heartbeat_messages import MOST_BYTES, PATHS
from probe.services.guard import HEADERS, is_local_name
from probe.services.listening import TokenCheck
from probe.services.server import page
from probe.services.server.metrics import CONTENT_TYPE, exposition
from probe.services.server.service import HeartbeatService, Reply

BODY_SECONDS = 10.0
"""Longest time in seconds in which a body arrives."""
MOST_READING = 64 << 20
"""Most bytes of all bodies that are read at one time."""
MOST_ROWS = 1_000
"""Most messages that one request reads."""
EVENTS_SHOWN = 100
PUBLIC = ("/", "/health", "/static/page.js", "/static/page.css")
"""Paths without data of a run: no token is needed."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


def application(service: HeartbeatService, token: str | None) -> Gate:
    """Return the ASGI application of the server."""
    endpoints = Endpoints(service)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        following = asyncio.ensure_future(service.follow())
        yield
        following.cancel()

    routes = [
        *(Route(path, endpoints.receive, methods=["POST"]) for path in PATHS.values()),
        Route("/v1/board", endpoints.board),
        Route("/v1/board/{id}", endpoints.job),
        Route("/v1/events", endpoints.events),
        Route("/v1/messages", endpoints.messages),
        Route("/metrics", endpoints.metrics),
        Route("/health", endpoints.health),
        Route("/", endpoints.page),
        Route("/static/{name}", endpoints.static),
    ]
    inner = Starlette(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: _failure, 500: _internal})
    return Gate(inner, service, token)


class Gate:
    """Check of each request before the endpoints: the token, or, without one, that it was sent to this machine."""

    def __init__(self, inner: Starlette, service: HeartbeatService, token: str | None) -> None:
        self._inner, self._service = inner, service
        self._token = None if token is None else TokenCheck(token)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._inner(scope, receive, send)
            return
        refusal = self._refusal(scope)
        if refusal is not None:
            self._service.counts["requests", str(refusal.status_code)] += 1
            await refusal(scope, receive, send)
            return

        async def counted(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                self._service.counts["requests", str(message["status"])] += 1
            await send(message)

        await self._inner(scope, receive, counted)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = dict(scope["headers"])
        if self._token is None:
            if not is_local_name(headers.get(b"host", b"").decode("latin-1")):
                return _json(403, {"error": "expected the host name localhost or a loopback address"})
        elif scope["path"] not in PUBLIC and not self._token.passes(headers):
            refusal = _json(401, {"error": "expected the token of this server"})
            refusal.headers["WWW-Authenticate"] = "Bearer"
            return refusal
        return None


class Endpoints:
    """Functions of the paths."""

    def __init__(self, service: HeartbeatService) -> None:
        self._service = service
        self._reading = 0

    async def receive(self, request: Request) -> Response:
        """Store messages."""
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
        return _too_large() if data is None else _reply(await self._service.receive(data, request.url.path))

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

    async def board(self, _: Request) -> Response:
        """Return all jobs."""
        return _json(200, page.jobs(self._service.board, anyio.current_time()))

    async def job(self, request: Request) -> Response:
        """Return one job with its worst ranks."""
        job = self._service.board.job(request.path_params["id"])
        if job is None:
            return _json(404, {"error": "no such job"})
        return _json(200, page.worst_ranks(job, anyio.current_time()))

    async def events(self, request: Request) -> Response:
        """Return the newest findings and exceptions."""
        job, store = request.query_params.get("job"), self._service.store
        found = await run_in_threadpool(store.messages, 0, EVENTS_SHOWN, job, True)
        return _json(200, {"messages": page.rows(found)})

    async def messages(self, request: Request) -> Response:
        """Return stored messages in their order, from one id on."""
        after = request.query_params.get("after", "0")
        if not after.isdecimal() or len(after) > 18:
            return _json(400, {"error": "after: expected the id of a message"})
        job, store = request.query_params.get("job"), self._service.store
        found = await run_in_threadpool(store.messages, int(after), MOST_ROWS, job)
        return _json(200, {"messages": page.rows(found)})

    async def metrics(self, _: Request) -> Response:
        """Return the state for Prometheus."""
        service = self._service
        text = exposition(service.store, service.board, service.counts)
        return Response(text, headers={"Content-Type": CONTENT_TYPE})

    async def health(self, _: Request) -> Response:
        """Return whether the database can be written."""
        works = await self._service.works()
        return _json(200 if works else 503, {"status": "ok" if works else "the database cannot be written"})

    async def page(self, _: Request) -> Response:
        """Return the page."""
        return Response(page.text("page.html"), headers={**HEADERS, "Content-Type": "text/html; charset=utf-8"})

    async def static(self, request: Request) -> Response:
        """Return a file of the page."""
        name = request.path_params["name"]
        if name not in page.FILES:
            return _json(404, {"error": "no such file"})
        kind = f"{page.FILES[name]}; charset=utf-8"
        return Response(page.text(name), headers={**HEADERS, "Content-Type": kind})


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
    return _json(413, {"error": f"expected a body of at most {MOST_BYTES} bytes"})


def _reply(reply: Reply) -> Response:
    return _json(reply.status, reply.body, retry_after=reply.retry_after)


def _json(status: int, body: object, *, retry_after: int | None = None, close: bool = False) -> Response:
    """Return an answer; ``close`` ends the connection. Otherwise uvicorn discards what is left of the request's body,
    so that its sender gets the answer and not a broken connection."""
    text = json.dumps(body, separators=(",", ":"), allow_nan=False)
    response = Response(text, status, media_type="application/json")
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


async def _internal(_: Request, __: Exception) -> Response:
    return _json(500, {"error": "internal error"})
