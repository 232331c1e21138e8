"""Numbers of a service in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Samples = Iterable[tuple[Sequence[str], float]]
"""Values of the labels of each sample, and its number."""


class Families:
    """Families as the encoders of prometheus_client take them."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Sequence[Metric]:
        return self._families


def gauge(name: str, help_text: str, samples: float | Samples, labels: Sequence[str] = ()) -> Metric:
    """Return a gauge: one number, or samples with labels."""
    return _filled(GaugeMetricFamily(name, help_text, labels=labels), samples)


def counter(name: str, help_text: str, samples: float | Samples, labels: Sequence[str] = ()) -> Metric:
    """Return a counter: one number, or samples with labels."""
    return _filled(CounterMetricFamily(name, help_text, labels=labels), samples)


def page(families: Iterable[Metric]) -> bytes:
    """Return the answer of ``/metrics``."""
    return generate_latest(Families(families))


def _filled(family: GaugeMetricFamily | CounterMetricFamily, samples: float | Samples) -> Metric:
    for values, number in [((), samples)] if isinstance(samples, (int, float)) else samples:
        family.add_metric(values, number)
    return family
