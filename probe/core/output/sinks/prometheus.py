"""Sink for Prometheus: a mapped file that `probe exporter` serves, a text file, or a Pushgateway."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import annotated_types as ranges
from pydantic import AfterValidator

from probe.core.errors import missing
from probe.core.fields import Integer, Number, Section, Text, not_blank
from probe.core.output.metrics.board import MetricBoard
from probe.core.output.metrics.catalogue import METRICS, Series
from probe.core.output.metrics.hub import MetricsHub, MetricsOutlet, MetricsWriter, RankName
from probe.core.output.metrics.mapped_file import Values
from probe.core.output.sinks.outlet import OutletSink

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


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


class _Current:
    """Collector of given series."""

    def __init__(self, series: Sequence[Series], values: Values, labels: dict[str, str]) -> None:
        self._series, self._values, self._labels = series, values, labels

    def collect(self) -> Iterator[Any]:
        """Yield a family for each metric."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        families: dict[str, Any] = {}
        for item, value in zip(self._series, self._values.tolist(), strict=True):
            metric = METRICS[item.metric]
            if item.metric not in families:
                family = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
                families[item.metric] = family(item.metric, metric.about, labels=[*self._labels, *metric.labels])
            families[item.metric].add_metric([*self._labels.values(), *item.labels], value)
        yield from families.values()


def _registry(series: Sequence[Series], values: Values, labels: dict[str, str]) -> CollectorRegistry:
    from prometheus_client import CollectorRegistry

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Current(series, values, labels))
    return registry


def check_package() -> None:
    """Check that the package is there.

    Raises:
        ImportError: if it is missing.
    """
    try:
        import prometheus_client  # noqa: F401 - imported again where it is used
    except ImportError:
        raise ImportError(missing("prometheus.textfile and prometheus.push", "prometheus_client", "services")) from None


class TextfileWriter:
    """Writer of a text file that the node exporter's collector of text files reads.

    Args:
        folder: the collector's folder.

    Raises:
        OSError: if the folder cannot be written.
    """

    def __init__(self, folder: Path, name: RankName) -> None:
        if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
            raise NotADirectoryError(
                f"prometheus.textfile: {folder}: expected a directory that can be written, the one in the node "
                "exporter's --collector.textfile.directory"
            )
        job = re.sub(r"[^A-Za-z0-9_-]", "_", name.job)[:100]
        apart = "" if job == name.job else f"_{zlib.crc32(name.job.encode('utf-8', 'replace')):08x}"
        self._path = folder / f"probe_{job}{apart}_rank{name.rank}.prom"
        self._labels = {"job": name.job, "rank": str(name.rank)}

    def send(self, series: Sequence[Series], values: Values, seconds: float) -> None:  # noqa: ARG002 - a file
        """Replace the file.

        Raises:
            OSError: if it cannot be written.
        """
        from prometheus_client import write_to_textfile

        write_to_textfile(str(self._path), _registry(series, values, self._labels))

    def end(self, seconds: float) -> None:  # noqa: ARG002 - a file
        """Remove the file: numbers of a run that is over would look current."""
        self._path.unlink(missing_ok=True)


class PushWriter:
    """Writer to a Pushgateway, in a group of its own by job and rank."""

    def __init__(self, address: str, name: RankName) -> None:
        self._address, self._job, self._group = address, name.job, {"rank": str(name.rank)}

    def send(self, series: Sequence[Series], values: Values, seconds: float) -> None:
        """Replace the group.

        Raises:
            OSError: if the gateway cannot be reached or refuses.
        """
        from prometheus_client import push_to_gateway

        push_to_gateway(self._address, self._job, _registry(series, values, {}), self._group, timeout=seconds)

    def end(self, seconds: float) -> None:
        """Delete the group: the gateway would show its numbers for ever.

        Raises:
            OSError: if the gateway cannot be reached or refuses.
        """
        from prometheus_client import delete_from_gateway

        delete_from_gateway(self._address, self._job, self._group, timeout=seconds)
