"""Numbers of the service for Prometheus; labels have values of the configuration alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from probe.services.remediation.service import RemediationService

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


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
