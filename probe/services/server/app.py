"""Endpoints of the server: tokens, sizes and types of requests are checked here, before anything is read."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import anyio
import anyio.to_thread
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from probe.core.run_state.heartbeat_messages import MOST_BYTES, PATHS
from probe.services.server import job_answers
from probe.services.server.metrics import CONTENT_TYPE, exposition
from probe.services.server.service import HeartbeatService
from probe.services.web.answers import failures, json_answer
from probe.services.web.body import BodyReader
from probe.services.web.gate import HEALTH, Gate, admission
from probe.services.web.page_files import PAGE, jobs_page, page_file

MOST_READING = 64 << 20
"""Most bytes of all bodies that are read at one time."""
MOST_ROWS = 1_000
"""Most messages that one request reads."""
MOST_READERS = 4
"""Most requests that read messages at one time."""
EVENTS_SHOWN = 100
PUBLIC = (*HEALTH, "/", *(f"/page/{path.name}" for path in PAGE.iterdir()))
"""Paths without data of a run: no token is needed."""


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
        Route("/page/{name}", endpoints.file),
    ]

    def count(status: int) -> None:
        service.counts["requests", str(status)] += 1

    inner = Starlette(routes=routes, lifespan=lifespan, exception_handlers=failures())
    return Gate(inner, admission(token, "server", PUBLIC), count)


class Endpoints:
    """Functions of the paths."""

    def __init__(self, service: HeartbeatService) -> None:
        self._service = service
        self._bodies = BodyReader(MOST_BYTES, MOST_READING)
        self._readers = anyio.CapacityLimiter(MOST_READERS)

    async def receive(self, request: Request) -> Response:
        """Store messages."""
        data = await self._bodies.read(request)
        if isinstance(data, Response):
            return data
        return (await self._service.receive(data, request.url.path)).answer()

    async def board(self, _: Request) -> Response:
        """Return all jobs."""
        return json_answer(200, job_answers.jobs(self._service.board, anyio.current_time()))

    async def job(self, request: Request) -> Response:
        """Return one job with its worst ranks."""
        job = self._service.board.job(request.path_params["id"])
        if job is None:
            return json_answer(404, {"error": "no such job"})
        return json_answer(200, job_answers.worst_ranks(job, anyio.current_time()))

    async def events(self, request: Request) -> Response:
        """Return the newest findings and exceptions."""
        return await self._stored(0, EVENTS_SHOWN, request.query_params.get("job"), events=True)

    async def messages(self, request: Request) -> Response:
        """Return stored messages in their order, from one id on."""
        after = request.query_params.get("after", "0")
        if not after.isdecimal() or len(after) > 18:
            return json_answer(400, {"error": "after: expected the id of a message"})
        return await self._stored(int(after), MOST_ROWS, request.query_params.get("job"), events=False)

    async def _stored(self, after: int, most: int, job: str | None, events: bool) -> Response:
        """Return messages in an answer that is made on a thread."""

        def answer() -> Response:
            messages = self._service.store.messages(after, most, job, events)
            return json_answer(200, {"messages": job_answers.rows(messages)})

        return await anyio.to_thread.run_sync(answer, limiter=self._readers)

    async def metrics(self, _: Request) -> Response:
        """Return the state for Prometheus."""
        service = self._service
        text = exposition(service.store, service.board, service.counts)
        return Response(text, headers={"Content-Type": CONTENT_TYPE})

    async def health(self, _: Request) -> Response:
        """Return whether the database can be written."""
        works = await self._service.works()
        return json_answer(200 if works else 503, {"status": "ok" if works else "the database cannot be written"})

    async def page(self, _: Request) -> Response:
        """Return the page."""
        return jobs_page()

    async def file(self, request: Request) -> Response:
        """Return a file of the page."""
        return page_file(request.path_params["name"])
