"""Endpoints of the service: tokens, sizes and types of requests are checked here, before anything is read."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from probe.services.remediation.service import RemediationService
from probe.services.web.answers import failures, json_answer
from probe.services.web.body import BodyReader
from probe.services.web.gate import Gate, admission

_log = logging.getLogger("probe.remediation")

MOST_BYTES = 4 << 20
"""Most bytes of a body."""
MOST_READING = 32 << 20
"""Most bytes of all bodies that are read at one time."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


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
        return Response(exposition(self._service), headers={"Content-Type": CONTENT_TYPE})


def exposition(service: RemediationService) -> bytes:
    """Return the page of ``/metrics``."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ServiceNumbers(service))
    return generate_latest(registry)


class ServiceNumbers(Collector):
    """Collector of the numbers of one service."""

    def __init__(self, service: RemediationService) -> None:
        self._service = service

    def collect(self) -> Iterable[Metric]:
        """Yield every metric."""
        yield self._counter("requests", "Answers by status.", ("status",))
        yield self._counter("alerts", "Alerts that were over, or had been sent before.", ("result",))
        yield self._counter(
            "actions",
            "Changes of the state of actions; an empty name: alerts without an action.",
            ("action", "state", "dry_run"),
        )
        yield from self._gauges()

    def _counter(self, name: str, help_text: str, labels: tuple[str, ...]) -> CounterMetricFamily:
        family = CounterMetricFamily(f"probe_remediation_{name}", help_text, labels=labels)
        for (kind, *values), count in sorted(self._service.counts.copy().items()):
            if kind == name:
                family.add_metric(values, count)
        return family

    def _gauges(self) -> Iterator[Metric]:
        service = self._service
        yield _gauge("waiting", "Actions that have not begun.", service.workers.waiting)
        yield _gauge("running", "Actions under way.", service.workers.running)
        yield _gauge("up", "1 if every worker runs.", float(service.workers.alive))
        yield _gauge(
            "last_webhook_timestamp_seconds",
            "Unix time of the last request of Alertmanager; 0 before the first.",
            service.last_webhook,
        )
        yield CounterMetricFamily(
            "probe_remediation_history_failures",
            "Entries of the history that could not be written.",
            value=service.workers.store_failures,
        )
        live = GaugeMetricFamily(
            "probe_remediation_action_live", "0 if an action is rehearsed only.", labels=("action",)
        )
        for action in service.options.actions:
            live.add_metric((action.name,), float(not action.dry_run))
        yield live


def _gauge(name: str, help_text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"probe_remediation_{name}", help_text, value=value)
