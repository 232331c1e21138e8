"""Endpoints of the service: tokens, sizes and types of requests are checked here, before anything is read."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from prometheus_client.core import Metric
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from probe.services.remediation.service import RemediationService
from probe.services.web.answers import failures, json_answer
from probe.services.web.body import BodyReader
from probe.services.web.gate import Gate, admission
from probe.services.web.prometheus import CONTENT_TYPE, counter, gauge, page

_log = logging.getLogger("probe.remediation")

MOST_BYTES = 4 << 20
"""Most bytes of a body."""
MOST_READING = 32 << 20
"""Most bytes of all bodies that are read at one time."""


def application(service: RemediationService) -> Gate:
    """Return the ASGI application of the service."""
    endpoints = WebhookEndpoints(service)
    routes = [
        Route("/webhook", endpoints.webhook, methods=["POST"]),
        Route("/history", endpoints.history),
        Route("/health", endpoints.health),
        Route("/metrics", endpoints.metrics),
    ]

    def count(status: int) -> None:
        service.counts["requests", str(status)] += 1

    inner = Starlette(routes=routes, exception_handlers=failures(_log))
    tls = service.options.settings.tls
    by_certificate = tls is not None and tls.client_ca is not None
    return Gate(inner, admission(service.options.token, "service", to_all=by_certificate), count)


class WebhookEndpoints:
    """Functions of the paths."""

    def __init__(self, service: RemediationService) -> None:
        self._service = service
        self._bodies = BodyReader(MOST_BYTES, MOST_READING, "; set max_alerts in webhook_configs")

    async def webhook(self, request: Request) -> Response:
        """Admit alerts."""
        data = await self._bodies.read(request)
        if isinstance(data, Response):
            return data
        return (await run_in_threadpool(self._service.receive, data)).answer()

    async def history(self, _: Request) -> Response:
        """Return the last entries."""
        return json_answer(200, await run_in_threadpool(self._service.history))

    async def health(self, _: Request) -> Response:
        """Return whether actions can be recorded and carried out."""
        works = await run_in_threadpool(self._service.works)
        status = "ok" if works else "actions cannot be recorded or carried out"
        return json_answer(200 if works else 503, {"status": status})

    async def metrics(self, _: Request) -> Response:
        """Return the numbers of the service for Prometheus."""
        return Response(page(families(self._service)), headers={"Content-Type": CONTENT_TYPE})


def families(service: RemediationService) -> Iterator[Metric]:
    """Yield the numbers of the service; labels have values of the configuration alone."""
    for name, help_text, labels in (
        ("requests", "Answers by status.", ["status"]),
        ("alerts", "Alerts that were over, or had been sent before.", ["result"]),
        (
            "actions",
            "Changes of the state of actions; an empty name: alerts without an action.",
            ["action", "state", "dry_run"],
        ),
    ):
        counts = [(values, count) for (kind, *values), count in sorted(service.counts.copy().items()) if kind == name]
        yield counter(f"probe_remediation_{name}", help_text, counts, labels)
    workers = service.workers
    yield gauge("probe_remediation_waiting", "Actions that have not begun.", workers.waiting)
    yield gauge("probe_remediation_running", "Actions under way.", workers.running)
    yield gauge("probe_remediation_up", "1 if every worker runs.", float(workers.alive))
    yield gauge(
        "probe_remediation_last_webhook_timestamp_seconds",
        "Unix time of the last request of Alertmanager; 0 before the first.",
        service.last_webhook,
    )
    yield counter(
        "probe_remediation_history_failures",
        "Entries of the history that could not be written.",
        workers.store_failures,
    )
    live = [((action.name,), float(not action.dry_run)) for action in service.options.actions]
    yield gauge("probe_remediation_action_live", "0 if an action is rehearsed only.", live, ["action"])
