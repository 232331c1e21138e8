"""Series for Prometheus without an exporter: a text file for the node exporter, or pushed to a Pushgateway."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probe.core.errors import missing
from probe.core.output.metrics.catalogue import METRICS, Series
from probe.core.output.metrics.hub import RankName
from probe.core.output.metrics.mapped_file import Values

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


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
