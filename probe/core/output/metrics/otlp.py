"""Series by OpenTelemetry's protocol over HTTP.

Protocol: https://opentelemetry.io/docs/specs/otlp/. The SDK's instruments leave out values that are not finite, and its
periodic reader sends in forked children as well: so points are made here, and
:class:`probe.core.output.metrics.hub.MetricsSender` sends them.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from probe import __version__
from probe.core.errors import missing
from probe.core.output.metrics.catalogue import METRICS, Metric, Series, metrics_of
from probe.core.output.metrics.hub import RankName
from probe.core.output.metrics.mapped_file import Values

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
            from opentelemetry.sdk.resources import Resource
        except ImportError:
            raise ImportError(missing("format: otlp", "opentelemetry-exporter-otlp-proto-http", "otlp")) from None
        if endpoint is not None and not endpoint.startswith(("http://", "https://")):
            raise ValueError(f"otlp.endpoint: expected an address such as http://collector:4318/v1/metrics: {endpoint}")
        # Its own messages would repeat at every sending; failures are counted and logged once a window.
        logging.getLogger("opentelemetry.exporter.otlp.proto.http").setLevel(logging.CRITICAL)
        self._exporter = OTLPMetricExporter(endpoint=endpoint, headers=dict(headers))
        self._resource = Resource.create(
            {
                "service.name": name.job,
                "service.instance.id": f"{name.job}/{name.rank}/{os.getpid()}",
                "host.name": name.host,
                "job": name.job,
                "rank": str(name.rank),
            }
        )
        self._began = time.time_ns()

    def send(self, series: Sequence[Series], values: Values, seconds: float) -> None:
        """Send ``series``.

        Raises:
            OtlpError: if the collector cannot be reached or refuses.
        """
        from opentelemetry.sdk.metrics import export
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        now, points = time.time_ns(), dict[str, list[export.NumberDataPoint]]()
        for item, value in zip(series, values.tolist(), strict=True):
            labels = dict(zip(METRICS[item.metric].labels, item.labels, strict=True))
            points.setdefault(item.metric, []).append(export.NumberDataPoint(labels, self._began, now, value))
        metrics = [_metric(item, points[item.name]) for item in metrics_of(series)]
        scope = export.ScopeMetrics(InstrumentationScope("probe", __version__), metrics, "")
        data = export.MetricsData([export.ResourceMetrics(self._resource, [scope], "")])
        if self._exporter.export(data, seconds * 1000) is not export.MetricExportResult.SUCCESS:
            raise OtlpError("the collector of otlp.endpoint has not taken the metrics")

    def end(self, seconds: float) -> None:
        """Close the connection."""
        self._exporter.shutdown(seconds * 1000)


def _metric(metric: Metric, points: Sequence[Any]) -> Any:
    from opentelemetry.sdk.metrics import export

    data: Any = export.Gauge(points)
    if metric.kind == "counter":
        data = export.Sum(points, export.AggregationTemporality.CUMULATIVE, is_monotonic=True)
    return export.Metric(metric.name, metric.about, "", data)
