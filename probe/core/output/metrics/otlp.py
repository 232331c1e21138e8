"""Series by OpenTelemetry's protocol over HTTP.

Protocol: https://opentelemetry.io/docs/specs/otlp/. A forked child would send as well with the periodic reader of the
SDK, so its own thread is not used: :class:`probe.core.output.metrics.hub.MetricsSender` reads and sends.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from probe.core.errors import missing
from probe.core.output.metrics.catalogue import METRICS, Series, metrics_of
from probe.core.output.metrics.hub import RankName
from probe.core.output.metrics.mapped_file import Values

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

Headers = Mapping[str, str]


class OtlpError(OSError):
    """Error of metrics that a collector has not taken."""


class OtlpWriter:
    """Writer to a collector that takes OTLP over HTTP.

    Args:
        endpoint: address of the metrics; None: that of the environment, ``OTEL_EXPORTER_OTLP_ENDPOINT`` and its like.

    Raises:
        ImportError: if a package is missing.
        ValueError: if the address cannot be one.
    """

    def __init__(self, endpoint: str | None, headers: Headers, name: RankName) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
            from opentelemetry.sdk.metrics import MeterProvider
            from opentelemetry.sdk.metrics.export import InMemoryMetricReader
            from opentelemetry.sdk.resources import Resource
        except ImportError:
            raise ImportError(missing("format: otlp", "opentelemetry-exporter-otlp-proto-http", "otlp")) from None
        if endpoint is not None and not endpoint.startswith(("http://", "https://")):
            raise ValueError(f"otlp.endpoint: expected an address such as http://collector:4318/v1/metrics: {endpoint}")
        # Its own messages would repeat at every sending; failures are counted and logged once a window.
        logging.getLogger("opentelemetry.exporter.otlp.proto.http").setLevel(logging.CRITICAL)
        self._exporter = OTLPMetricExporter(endpoint=endpoint, headers=dict(headers))
        self._reader: InMemoryMetricReader = InMemoryMetricReader()
        resource = Resource.create(
            {
                "service.name": name.job,
                "service.instance.id": f"{name.job}/{name.rank}/{os.getpid()}",
                "host.name": name.host,
                "job": name.job,
                "rank": str(name.rank),
            }
        )
        self._provider = MeterProvider([self._reader], resource, shutdown_on_exit=False)
        self._meter = self._provider.get_meter("probe")
        self._made: set[str] = set()
        self._current: dict[str, list[tuple[dict[str, str], float]]] = {}

    def send(self, series: Sequence[Series], values: Values, seconds: float) -> None:
        """Send ``series``.

        Raises:
            OtlpError: if the collector cannot be reached or refuses.
        """
        from opentelemetry.sdk.metrics.export import MetricExportResult

        self._current = {}
        for each, value in zip(series, values.tolist(), strict=True):
            labels = dict(zip(METRICS[each.metric].labels, each.labels, strict=True))
            self._current.setdefault(each.metric, []).append((labels, value))
        for metric in metrics_of(series):
            if metric.name not in self._made:
                self._made.add(metric.name)
                make = self._meter.create_observable_gauge
                if metric.kind == "counter":
                    make = self._meter.create_observable_counter
                make(metric.name, [partial(self._observed, metric.name)], description=metric.about)
        data = self._reader.get_metrics_data()
        if data is not None and self._exporter.export(data, seconds * 1000) is not MetricExportResult.SUCCESS:
            raise OtlpError("the collector of otlp.endpoint has not taken the metrics")

    def _observed(self, metric: str, _: Any) -> Iterator[Any]:
        from opentelemetry.metrics import Observation

        for labels, value in self._current.get(metric, ()):
            yield Observation(value, labels)

    def end(self, seconds: float) -> None:
        """Close the connection."""
        self._exporter.shutdown(seconds * 1000)
