"""Sink for Prometheus: a mapped file that `probe exporter` serves, a text file, or a Pushgateway."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import annotated_types as ranges
from pydantic import AfterValidator

from probe.core.fields import Integer, Number, Section, Text, not_blank
from probe.core.output.metrics.board import MetricBoard
from probe.core.output.metrics.hub import MetricsHub, MetricsOutlet, MetricsWriter
from probe.core.output.sinks.outlet import OutletSink


class PrometheusSettings(Section):
    """Numbers for Prometheus, with ``format: prometheus``. Read when the run begins."""

    series: Annotated[Integer, ranges.Ge(50), ranges.Le(10_000)] = 200
    """Most series of a rank. Those beyond it are left out and counted in `probe_series_dropped`."""
    layers: tuple[Annotated[Text, AfterValidator(not_blank)], ...] = ()
    """Patterns such as `layers.0.*` of the names of rows about tensors that have series. Empty: all, or, if they are
    too many, those whose values have changed most; the choice is made again once a minute, and at once for a value that
    is not finite."""
    textfile: Annotated[Text, AfterValidator(not_blank)] | None = None
    """Directory of the node exporter's collector of text files, in which a file of this rank is replaced every
    `seconds`: without `probe exporter`."""
    push: Annotated[Text, AfterValidator(not_blank)] | None = None
    """Address of a Pushgateway, such as `http://10.0.0.1:9091`, for short jobs: sent to every `seconds`, deleted there
    at the end."""
    seconds: Annotated[Number, ranges.Gt(0)] = 10.0
    """Time from one writing of `textfile` or sending to `push` to the next; it grows to this from a second."""


class PrometheusSink(OutletSink):
    """Sink of the outlet for Prometheus. Opening it raises OSError if the mapped file or the directory of text files
    cannot be written, and ImportError if a package is missing."""

    format = "prometheus"

    def new_outlet(self, hub: MetricsHub) -> MetricsOutlet:
        """Return the outlet, as it is configured."""
        options = self._context.options.get("prometheus")
        settings = options if isinstance(options, PrometheusSettings) else PrometheusSettings()
        writers: list[MetricsWriter] = []
        if settings.textfile is not None or settings.push is not None:
            from probe.core.output.metrics.prometheus_text import PushWriter, TextfileWriter, check_package

            check_package()
            if settings.textfile is not None:
                writers.append(TextfileWriter(Path(settings.textfile).expanduser().absolute(), hub.name))
            if settings.push is not None:
                writers.append(PushWriter(settings.push, hub.name))
        board = MetricBoard(settings.series, settings.layers)
        outlet = MetricsOutlet(board, hub.counts, hub.mapped_file(settings.series))
        for writer in writers:
            outlet.add(writer, settings.seconds, hub.faults)
        return outlet
