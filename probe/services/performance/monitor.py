"""Monitor of the performance of a machine and of the training on it, on a thread of its own."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from probe.core.analysis.performance.loss_stretches import robust_slope
from probe.core.analysis.performance.throughput import HEALTHY, efficiency, stable_level
from probe.core.door import attempt
from probe.core.errors import missing
from probe.core.faults import Faults
from probe.core.storage.files import append, open_for_append
from probe.core.storage.performance_file import MOST_BYTES, PerformanceReading, line, mean, older
from probe.core.times import local_time
from probe.core.worker import Worker
from probe.services.performance.sources import MachineSource, TrainingSource

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
        judged = set(_known_numbers(reading, healthy))
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


def _known_numbers(reading: PerformanceReading, healthy: float | None) -> Iterator[tuple[str, str]]:
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


TRAINING_FILE = Path("/tmp/training_metrics.json")  # noqa: S108 - where older programs write it
DEADLINE = 5.0
FIRST_SECONDS = 5.0
"""Longest wait for the first readings of devices, after which training alone is read."""
LOOK_SECONDS = 0.05
END_SECONDS = 5.0
"""Longest wait for the thread at the end: a file system that does not answer cannot be interrupted."""
READING = "reading"
"""Place under which failures are counted."""
HOUR = 3600.0
GPU_TARGET, MEMORY_TARGET = 85.0, 80.0
"""Utilisation and memory of GPUs in percent that a run should reach."""


class PerformanceMonitor:
    """Readings of all GPUs, the machine and training at an interval; their summary, anomalies and score.

    No call waits for a driver: devices are read by processes of their own, and a reading that is late is left out.

    Args:
        history_size: readings that are kept.
        training_file: numbers of training: JSON with any of ``throughput``, ``loss``, ``learning_rate``,
            ``gradient_norm`` and ``step``, which the program replaces, or the mapped file of a rank (``.metrics``).
            Neither needs to be there.
        readings_file: file to which each reading is appended as a line of JSON, for ``probe performance``; none if
            missing.
        deadline: longest time in seconds by which a reading of devices may be late.
        commands: programs to be run instead of the usual readers, by source (``nvml``, ``npu``, ``host``).

    Raises:
        ValueError: if an argument is out of range.
    """

    def __init__(
        self,
        history_size: int = 1000,
        training_file: str | Path = TRAINING_FILE,
        readings_file: str | Path | None = None,
        deadline: float = DEADLINE,
        commands: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        if isinstance(history_size, bool) or not isinstance(history_size, int) or history_size < 1:
            raise ValueError(f"history_size: expected a whole number of at least 1, got {history_size!r}")
        self._deadline = _positive("deadline", deadline)
        self.history_size = history_size
        self._training_file = Path(training_file)
        self._readings_file = None if readings_file is None else Path(readings_file)
        self._commands = commands
        self._history = deque[PerformanceReading](maxlen=history_size)
        self._lock = threading.Lock()
        self._healthy = HealthyThroughput()
        self._anomalies = AnomalyLog(history_size)
        self._failed: str | None = None
        self._session: _Session | None = None

    @property
    def monitoring_active(self) -> bool:
        """True between :meth:`start_monitoring` and :meth:`stop_monitoring`."""
        return self._session is not None

    def start_monitoring(self, interval: float = 10.0) -> None:
        """Begin to read every ``interval`` seconds; do nothing if that has begun already.

        Raises:
            ValueError: if ``interval`` is no positive number.
            ImportError: if psutil is missing.
        """
        _positive("interval", interval)
        if self.monitoring_active:
            return
        if find_spec("psutil") is None:
            raise ImportError(missing("PerformanceMonitor", "psutil", "services"))
        machine = MachineSource(interval, self._deadline, self._commands)
        self._session = _Session(interval, machine, TrainingSource(self._training_file), self._take)
        self._session.start()

    def stop_monitoring(self) -> None:
        """End the readings; do nothing if there are none. The readings so far are kept."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _take(self, reading: PerformanceReading) -> None:
        """Keep, judge and write a reading. Called on the thread."""
        with self._lock:
            self._history.append(reading)
            self._healthy.add(reading.throughput)
            self._anomalies.judge(reading, self._healthy.level)
        if self._readings_file is not None:
            self._write(self._readings_file, reading)

    def _write(self, path: Path, reading: PerformanceReading) -> None:
        try:
            with open_for_append(path) as file:
                append(file, line(reading).encode())
                full = file.tell() > MOST_BYTES
            if full:
                path.replace(older(path))
            self._failed = None
        except OSError as error:
            if self._failed is None:  # once until a write succeeds
                _log.warning("%s: readings are not written: %s", path, error.strerror)
            self._failed = str(error)

    # Results.

    @property
    def readings(self) -> list[PerformanceReading]:
        """Readings that are kept, the oldest first."""
        with self._lock:
            return list(self._history)

    @property
    def anomalies(self) -> list[dict[str, Any]]:
        """Anomalies so far, at most ``history_size``, each with the time at which it began."""
        with self._lock:
            return list(self._anomalies.kept)

    @property
    def metrics_history(self) -> dict[str, list[Any]]:
        """Readings by number; of several devices the mean. None for a number that is unknown. Times are those of this
        machine with their offset from UTC, as in all other results."""
        readings = self.readings
        columns: dict[str, Callable[[PerformanceReading], float]] = {
            "gpu_utilization": lambda reading: reading.utilization_percent,
            "gpu_memory_usage": lambda reading: reading.device_memory_percent,
            "cpu_usage": lambda reading: reading.cpu_percent,
            "memory_usage": lambda reading: reading.memory_percent,
            "training_throughput": lambda reading: reading.throughput,
            "loss_value": lambda reading: reading.loss,
            "learning_rate": lambda reading: reading.learning_rate,
        }
        times = [local_time(reading.time) for reading in readings]
        return {
            "timestamp": times,
            **{name: [_known(value(reading)) for reading in readings] for name, value in columns.items()},
        }

    @property
    def performance_baselines(self) -> dict[str, float | None]:
        """Targets in percent, the healthy throughput, and the change of the loss in an hour (None if unknown)."""
        pairs = np.array(
            [(reading.time / HOUR, reading.loss) for reading in self.readings if math.isfinite(reading.loss)]
        )
        return {
            "gpu_utilization_target": GPU_TARGET,
            "memory_efficiency_target": MEMORY_TARGET,
            "throughput_baseline": self._healthy.level,
            "loss_convergence_rate": _known(robust_slope(pairs[:, 0], pairs[:, 1])) if len(pairs) > 1 else None,
        }

    def get_performance_summary(self, hours: float = 24) -> dict[str, Any]:
        """Return averages and extremes of the last ``hours``, by device and of all, and the efficiency; an empty dict
        without readings. A number that is unknown is None.

        Raises:
            ValueError: if ``hours`` is no number of at least 0.
        """
        hours = _positive("hours", hours, "hours", zero=True)
        end = time.time()
        begin = end - hours * HOUR
        some = [reading for reading in self.readings if begin <= reading.time <= end]
        if not some:
            return {}
        devices = {(device.id, device.name): None for reading in some for device in reading.devices}
        return {
            "time_range": {"start": _iso(begin), "end": _iso(end), "duration_hours": hours},
            "readings": len(some),
            "gpu_utilization": _extremes(reading.utilization_percent for reading in some),
            "memory_usage": _extremes(reading.device_memory_percent for reading in some),
            "gpus": [_of_device(some, *place) for place in devices],
            "cpu_usage": _extremes(reading.cpu_percent for reading in some),
            "host_memory_usage": _extremes(reading.memory_percent for reading in some),
            "training_efficiency": self._efficiency(some),
            "anomalies": len(self.anomalies),
        }

    def _efficiency(self, some: Sequence[PerformanceReading]) -> dict[str, Any]:
        throughput = mean(reading.throughput for reading in some)
        if not math.isfinite(throughput):
            return {}
        best = self._healthy.best
        score = efficiency(
            mean(reading.utilization_percent for reading in some), throughput, math.nan if best is None else best
        )
        return {
            "average_throughput": throughput,
            "average_gpu_utilization": _known(score.gpu_utilization),
            "best_throughput": best,
            "efficiency_score": _known(score.score),
            "rating": score.rating,
        }


class _Session:
    """Thread of one start: it takes a reading at each interval until it is closed."""

    def __init__(
        self,
        interval: float,
        machine: MachineSource,
        training: TrainingSource,
        take: Callable[[PerformanceReading], None],
    ) -> None:
        self._interval, self._machine, self._training, self._take = interval, machine, training, take
        self._faults, self._patience, self._due = Faults("the monitor goes on"), 0.0, 0.0
        self._worker = Worker("probe-performance", READING, self._faults, look=self._look)

    def start(self) -> None:
        self._worker.wake()

    def close(self) -> None:
        self._machine.close()
        self._worker.end(self._training.close)
        self._worker.join(END_SECONDS)

    def _look(self) -> float:
        if not self._patience:
            self._machine.start()
            self._patience = time.monotonic() + FIRST_SECONDS
        if not self._due:
            if not self._machine.is_ready and time.monotonic() < self._patience:
                return LOOK_SECONDS
            self._due = time.monotonic()
        attempt(self._faults, READING, self._read)  # the next one may succeed
        self._due = max(self._due + self._interval, time.monotonic())
        return self._due - time.monotonic()

    def _read(self) -> None:
        numbers: dict[str, Any] = dict(self._training.look())
        self._take(PerformanceReading(time.time(), *self._machine.look(), **numbers))


def _of_device(some: Sequence[PerformanceReading], identity: str, name: str) -> dict[str, Any]:
    rows = [device for reading in some for device in reading.devices if (device.id, device.name) == (identity, name)]
    return {
        "gpu_id": identity,
        "gpu_name": name,
        "utilization": _extremes(device.utilization_percent for device in rows),
        "memory_usage": _extremes(device.memory_percent for device in rows),
        "temperature": _extremes(device.temperature_celsius for device in rows),
        "power_watts": _extremes(device.power_usage_watts for device in rows),
    }


def _extremes(values: Iterable[float]) -> dict[str, float | None]:
    """Return the average, the highest and the lowest of the finite ``values``; None if there are none."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return {"average": None, "max": None, "min": None}
    return {"average": sum(finite) / len(finite), "max": max(finite), "min": min(finite)}


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _iso(seconds: float) -> str:
    return local_time(seconds).isoformat(timespec="seconds")


def _positive(name: str, value: float, unit: str = "seconds", zero: bool = False) -> float:
    """Return a number that is above 0, or 0 if ``zero`` permits that."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or value < 0 or (value == 0 and not zero):
        least = ", at least 0" if zero else " above 0"
        raise ValueError(f"{name}: expected a number of {unit}{least}, got {value!r}")
    return float(value)
