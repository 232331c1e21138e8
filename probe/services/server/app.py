"""Endpoints of the server: tokens, sizes and types of requests are checked here, before anything is read."""

from __future__ import annotations

import asyncio
import contextlib
import math
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from typing import Any

import anyio
import anyio.to_thread
from prometheus_client.core import Metric
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from probe.core.naming import STEP_SECONDS
from probe.core.run_state.heartbeat_messages import MOST_BYTES, PATHS, number_text, travelling
from probe.services.server.board import NUMBERS, JobView, RankSummary, RunBoard
from probe.services.server.judge import ranges
from probe.services.server.service import HeartbeatService
from probe.services.server.store import HeartbeatStore, StoredMessage
from probe.services.web.answers import PAGE, failures, jobs_page, json_answer, page_file
from probe.services.web.body import BodyReader
from probe.services.web.gate import HEALTH, Gate, admission
from probe.services.web.prometheus import CONTENT_TYPE, Samples, counter, gauge, page

MOST_READING = 64 << 20
"""Most bytes of all bodies that are read at one time."""
MOST_ROWS = 1_000
"""Most messages that one request reads."""
MOST_READERS = 4
"""Most requests that read messages at one time."""
EVENTS_SHOWN = 100
PUBLIC = (*HEALTH, "/", *(f"/page/{path.name}" for path in PAGE.iterdir()))
"""Paths without data of a run: no token is needed."""
MOST_JOBS_LISTED = 100
WORST = 20
"""Ranks of a job that are shown."""
ORDER = ("silent", "waiting", "alive", "replaced", "ended")
"""States, the worst first."""


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
        return json_answer(200, jobs(self._service.board, anyio.current_time()))

    async def job(self, request: Request) -> Response:
        """Return one job with its worst ranks."""
        job = self._service.board.job(request.path_params["id"])
        if job is None:
            return json_answer(404, {"error": "no such job"})
        return json_answer(200, worst_ranks(job, anyio.current_time()))

    async def events(self, request: Request) -> Response:
        """Return the newest findings and exceptions."""
        return await self._stored(0, EVENTS_SHOWN, request.query_params.get("job"), events=True)

    async def messages(self, request: Request) -> Response:
        """Return stored messages in their order, from one id on."""
        after = request.query_params.get("after", "0")
        if not (after.isascii() and after.isdecimal()) or len(after) > 18:
            return json_answer(400, {"error": "after: expected the id of a message"})
        return await self._stored(int(after), MOST_ROWS, request.query_params.get("job"), events=False)

    async def _stored(self, after: int, most: int, job: str | None, events: bool) -> Response:
        """Return messages in an answer that is made on a thread."""

        def answer() -> Response:
            try:
                messages = self._service.store.messages(after, most, job, events)
            except sqlite3.Error:  # the file is gone, or damaged
                return json_answer(
                    503, {"error": "the database cannot be read: put its file back, and start the server again"}
                )
            return json_answer(200, {"messages": rows(messages)})

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


def jobs(board: RunBoard, now: float) -> dict[str, Any]:
    """Return all jobs, those with silent ranks first, then the newest."""
    listed_jobs = sorted(board.jobs, key=lambda job: (not job.of("silent"), not job.of("alive"), -job.received))
    return {
        "jobs": [_job(job, now) for job in listed_jobs[:MOST_JOBS_LISTED]],
        "more": max(len(listed_jobs) - MOST_JOBS_LISTED, 0),
        "ranks": board.ranks,
    }


def _job(job: JobView, now: float) -> dict[str, Any]:
    last = job.curve[-1] if job.curve else None
    steps = [rank.step for rank in job.of("alive", "silent") if not math.isnan(rank.step)]
    return {
        "id": job.id,
        "job": job.job,
        "launch": job.launch,
        "world": job.world,
        "states": {state: number for state in ORDER if (number := len(job.of(state)))},
        "silent": ranges([rank.origin.rank for rank in job.of("silent")]),
        "age": round(now - job.received, 1),
        "step": number_text(last.step) if last and not math.isnan(last.step) else None,
        "behind": number_text(max(steps) - min(steps)) if steps else None,
        "loss": number_text(last.loss) if last else None,
        "grad_norm": _sent(last.grad_norm) if last else None,
        "step_seconds": _sent(last.step_seconds) if last else None,
        "events": job.events,
        "curve": [[number_text(point.step), number_text(point.loss)] for point in job.curve],
    }


def _sent(number: float | None) -> float | str | None:
    return None if number is None else number_text(number)


def worst_ranks(job: JobView, now: float) -> dict[str, Any]:
    """Return the ranks of a job that need attention: silent ones, those furthest behind, the slowest."""
    worst = sorted(job.ranks.values(), key=_urgency)[:WORST]
    return {**_job(job, now), "worst": [_rank(rank, now) for rank in worst], "processes": len(job.ranks)}


def _urgency(rank: RankSummary) -> tuple[int, bool, float, float, int]:
    broken = any(not math.isfinite(value) for value in rank.numbers.values())
    step = rank.step if math.isfinite(rank.step) else math.inf
    seconds = rank.numbers.get(STEP_SECONDS, 0.0)
    seconds = seconds if math.isfinite(seconds) else math.inf
    return ORDER.index(rank.state), not broken, step, -seconds, rank.origin.rank


def _rank(rank: RankSummary, now: float) -> dict[str, Any]:
    numbers = {name: number_text(rank.numbers[name]) for name in NUMBERS if name in rank.numbers}
    return {
        "rank": rank.origin.rank,
        "run": rank.origin.run,
        "state": rank.state,
        "age": round(now - rank.received, 1),
        "promise": number_text(rank.promise),
        "step": None if math.isnan(rank.step) else number_text(rank.step),
        "phase": rank.phase,
        **numbers,
    }


def rows(messages: Iterable[StoredMessage]) -> list[Mapping[str, Any]]:
    """Return stored messages as JSON has them."""
    return [
        {
            "id": message.id,
            **message.origin._asdict(),
            "number": message.message.number,
            "kind": message.message.kind,
            "time": message.message.time,
            "received": message.received,
            "promise": None if message.message.promise is None else number_text(message.message.promise),
            "late": message.late,
            "values": travelling(message.message.values),
        }
        for message in messages
    ]


MOST_JOBS_SHOWN = 100
"""Jobs with lines of their own: those with the newest messages."""
STATES = ("alive", "waiting", "silent", "ended", "replaced")
JOB_GAUGES = {
    "step": "Step of the rank that stands for the job.",
    "loss": "Loss at that step.",
    "grad_norm": "Gradient norm at that step.",
    "step_seconds": "Seconds that the step took.",
}
NAMES = ("job", "launch", "id")
"""Labels of a job."""


def exposition(store: HeartbeatStore, board: RunBoard, counts: Counter[tuple[str, str]]) -> bytes:
    """Return the page of ``/metrics``."""
    return page([*_of_server(store, board, counts), *_of_jobs(board)])


def _of_server(store: HeartbeatStore, board: RunBoard, counts: Counter[tuple[str, str]]) -> Iterator[Metric]:
    def counted(kind: str) -> Samples:
        return [((label,), count) for (name, label), count in sorted(counts.items()) if name == kind]

    yield counter("probe_server_requests_total", "Answers by status.", counted("requests"), ["status"])
    yield counter("probe_server_messages_total", "Messages: stored, or known already.", counted("messages"), ["result"])
    yield counter("probe_server_commits_total", "Transactions.", store.commits)
    yield counter("probe_server_commit_seconds_total", "Seconds in transactions.", store.commit_seconds)
    yield counter("probe_server_commit_failures_total", "Failed transactions.", store.failures)
    yield gauge("probe_server_waiting", "Requests that wait for a commit.", store.waiting)
    yield gauge("probe_server_jobs", "Jobs.", len(list(board.jobs)))


def _of_jobs(board: RunBoard) -> Iterator[Metric]:
    jobs = sorted(board.jobs, key=lambda job: -job.received)[:MOST_JOBS_SHOWN]
    ranks = [((*_names(job), state), len(job.of(state))) for job in jobs for state in STATES]
    yield gauge("probe_job_ranks", "Processes of a job by state.", ranks, [*NAMES, "state"])
    for place, (name, help_text) in enumerate(JOB_GAUGES.items()):
        points = [(_names(job), job.curve[-1][place]) for job in jobs if job.curve]
        samples = [(names, value) for names, value in points if value is not None]
        yield gauge(f"probe_job_{name}", help_text, samples, NAMES)
    stages = [((*_names(job), stage), seconds) for job in jobs for stage, seconds in sorted(job.stages.items())]
    yield gauge("probe_job_stage_seconds", "Seconds of a stage of start-up or of a step.", stages, [*NAMES, "stage"])


def _names(job: JobView) -> tuple[str, str, str]:
    return job.job, job.launch, job.id
