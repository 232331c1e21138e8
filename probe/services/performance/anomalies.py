"""Anomalies of performance: devices that have little to do or no memory left, and throughput below the healthy one."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np

from probe.core.analysis.performance.throughput import HEALTHY, stable_level
from probe.core.storage.performance_file import PerformanceReading
from probe.core.times import local_time

LOW_UTILIZATION = 50.0
"""Utilisation in percent below which a device has little to do."""
HIGH_MEMORY = 95.0
"""Memory in percent above which a device is about to have none left."""
DROP = 0.7
"""Part of the healthy throughput below which a drop is reported."""
WARM_UP = 3
"""Throughputs at the beginning that are not judged."""
NEEDED = 15
"""Consecutive throughputs that are stable or not."""

_log = logging.getLogger("probe.performance")


class HealthyThroughput:
    """First stable throughput of a training run. It is never lowered; it is raised if the run turns out to have begun
    slowly."""

    def __init__(self) -> None:
        self._latest = deque[float](maxlen=NEEDED)
        self._seen = 0
        self.level: float | None = None
        """None before any stretch was stable."""
        self.best: float | None = None
        """Highest stable throughput."""

    def add(self, throughput: float) -> None:
        """Take the throughput of a reading; what is no positive number is left out."""
        if not (math.isfinite(throughput) and throughput > 0):
            return
        self._seen += 1
        if self._seen <= WARM_UP:
            return
        self._latest.append(throughput)
        if len(self._latest) < NEEDED:
            return
        level = stable_level(np.array(self._latest))
        if level is not None:
            self.best = level if self.best is None else max(self.best, level)
            if self.level is None or self.level < HEALTHY * level:
                self.level = level


class AnomalyLog:
    """Log of anomalies: an anomaly is logged and kept at its beginning, and logged at its end.

    Args:
        size: most anomalies that are kept.
    """

    def __init__(self, size: int) -> None:
        self._open: dict[tuple[str, str], float] = {}
        self.kept = deque[dict[str, Any]](maxlen=size)

    def judge(self, reading: PerformanceReading, healthy: float | None) -> None:
        """Judge one reading. A number that is unknown neither begins nor ends an anomaly."""
        now: set[tuple[str, str]] = set()
        for anomaly in found(reading, healthy):
            place = anomaly["type"], str(anomaly.get("gpu_id", ""))
            now.add(place)
            if place not in self._open:
                self._open[place] = reading.time
                at = local_time(reading.time).isoformat(timespec="milliseconds")
                self.kept.append({"timestamp": at, **anomaly})
                _log.warning("anomaly %s", " ".join(f"{key}={_text(value)}" for key, value in anomaly.items()))
        judged = set(_known(reading, healthy))
        for place in [place for place in self._open if place in judged and place not in now]:
            since = reading.time - self._open.pop(place)
            _log.info("anomaly type=%s gpu_id=%s is over after seconds=%.0f", *place, since)


def found(reading: PerformanceReading, healthy: float | None) -> Iterator[dict[str, Any]]:
    """Yield the anomalies in ``reading``.

    Args:
        healthy: healthy throughput; None if it is unknown.
    """
    for device in reading.devices:
        device_id = {"gpu_id": device.id}
        if device.utilization_percent < LOW_UTILIZATION:
            yield {
                "type": "low_gpu_utilization", "value": device.utilization_percent, "threshold": LOW_UTILIZATION,
                "severity": "warning", **device_id,
            }  # fmt: skip
        if device.memory_percent > HIGH_MEMORY:
            yield {
                "type": "high_gpu_memory", "value": device.memory_percent, "threshold": HIGH_MEMORY,
                "severity": "critical", **device_id,
            }  # fmt: skip
    if healthy is not None and reading.throughput < DROP * healthy:
        yield {"type": "throughput_drop", "value": reading.throughput, "baseline": healthy, "severity": "warning"}


def _known(reading: PerformanceReading, healthy: float | None) -> Iterator[tuple[str, str]]:
    """Yield the anomalies about which ``reading`` says something."""
    for device in reading.devices:
        if math.isfinite(device.utilization_percent):
            yield "low_gpu_utilization", device.id
        if math.isfinite(device.memory_percent):
            yield "high_gpu_memory", device.id
    if healthy is not None and math.isfinite(reading.throughput):
        yield "throughput_drop", ""


def _text(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
