"""Sink for collectors of OpenTelemetry."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import annotated_types as ranges
from pydantic import AfterValidator

from probe.core.fields import Integer, Number, Section, Text, not_blank
from probe.core.output.metrics.board import MetricBoard
from probe.core.output.metrics.hub import MetricsHub, MetricsOutlet
from probe.core.output.metrics.otlp import OtlpWriter
from probe.core.output.sinks.outlet import OutletSink


class OtlpSettings(Section):
    """Metrics by OpenTelemetry's protocol, with ``format: otlp``. Read when the run begins."""

    endpoint: Annotated[Text, AfterValidator(not_blank)] | None = None
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
