"""Sink for collectors of OpenTelemetry: series by its protocol over HTTP.

The SDK's instruments leave out values that are not finite, and its periodic reader sends in forked children as well: so
points are made here, and :class:`probe.core.output.metrics.hub.MetricsSender` sends them.
"""

from __future__ import annotations

import logging
import os
import stat
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import annotated_types as ranges
from pydantic import AfterValidator

from probe import __version__
from probe.core.errors import missing
from probe.core.fields import Integer, Number, Section, Text, address_like, not_blank
from probe.core.output.metrics.board import MetricBoard
from probe.core.output.metrics.catalogue import METRICS, Metric, Series, metrics_of
from probe.core.output.metrics.hub import MetricsHub, MetricsOutlet, RankName
from probe.core.output.metrics.mapped_file import Values
from probe.core.output.sinks.outlet import OutletSink


class OtlpSettings(Section):
    """Metrics by OpenTelemetry's protocol, with ``format: otlp``. Read when the run begins."""

    endpoint: Annotated[Text, address_like("http://collector:4318/v1/metrics")] | None = None
    """Address that takes metrics over HTTP, such as `http://collector:4318/v1/metrics`. Missing: that of the variables
    `OTEL_EXPORTER_OTLP_METRICS_ENDPOINT` or `OTEL_EXPORTER_OTLP_ENDPOINT`, else this machine's port 4318."""
    headers_file: Annotated[Text, AfterValidator(not_blank)] | None = None
    """File that nobody else can read, with a header a line, such as `Authorization: Bearer TOKEN`."""
    seconds: Annotated[Number, ranges.Gt(0)] = 10.0
    """Time from one sending to the next; it grows to this from a second."""
    series: Annotated[Integer, ranges.Ge(50), ranges.Le(100_000)] = 2000
    """Most series of a rank. Those beyond it are left out and counted in `probe_series_dropped`."""
    layers: tuple[Annotated[Text, AfterValidator(not_blank)], ...] = ()
    """Patterns of the names of rows about tensors, as in `prometheus.layers`."""


class OtlpSink(OutletSink):
    """Sink of the outlet to a collector. Opening it raises ImportError if a package is missing, and ValueError if the
    address or the file of headers cannot be used."""

    format = "otlp"

    def new_outlet(self, hub: MetricsHub) -> MetricsOutlet:
        """Return the outlet, as it is configured."""
        options = self._context.options.get("otlp")
        settings = options if isinstance(options, OtlpSettings) else OtlpSettings()
        writer = OtlpWriter(settings.endpoint, headers_of(settings.headers_file), hub.name)
        outlet = MetricsOutlet(MetricBoard(settings.series, settings.layers), hub.counts)
        outlet.add(writer, settings.seconds, hub.faults)
        return outlet


def headers_of(file: str | None) -> Mapping[str, str]:
    """Return the headers in ``file``.

    Raises:
        ValueError: if it cannot be read, if others can read it, or if a line is no header; no message has any of it.
    """
    if file is None:
        return {}
    path = Path(file).expanduser()
    try:
        if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ValueError(f"otlp.headers_file: {path}: others can read it; run: chmod 600 {path}")
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"otlp.headers_file: {path}: cannot be read: {type(error).__name__}") from None
    headers = {}
    for number, line in enumerate(lines, 1):
        name, colon, value = line.partition(":")
        if line.strip() and (not colon or not name.strip() or not value.strip()):
            example = "Authorization: Bearer TOKEN"
            raise ValueError(f"otlp.headers_file: {path}:{number}: expected a header such as {example}")
        if line.strip():
            headers[name.strip()] = value.strip()
    return headers


Headers = Mapping[str, str]


class OtlpError(OSError):
    """Error of metrics that a collector has not taken."""


class OtlpWriter:
    """Writer to a collector that takes OTLP over HTTP.

    Args:
        endpoint: address of the metrics; None: that of the environment, ``OTEL_EXPORTER_OTLP_ENDPOINT`` and its like.

    Raises:
        ImportError: if a package is missing.
    """

    def __init__(self, endpoint: str | None, headers: Headers, name: RankName) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
            from opentelemetry.sdk.resources import Resource
        except ImportError:
            raise ImportError(missing("format: otlp", "opentelemetry-exporter-otlp-proto-http", "otlp")) from None
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
