"""Sources of a performance monitor: devices and machine by processes of their own, training by a file."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from probe.core.output.metrics.catalogue import NUMBERS, STEP
from probe.core.output.metrics.mapped_file import SUFFIX, MetricsReader
from probe.core.storage.performance_file import DeviceReading
from probe.services.exporter.json_numbers import JsonNumbers
from probe.services.exporter.reading_process import ReadingProcess, Sample
from probe.services.exporter.readings import ascend

GPUS, NPUS, HOST = "nvml", "npu", "host"
KINDS = ("gpu", "npu")
"""Beginnings of the names of devices' metrics, and of their labels."""
QUICKEST = 2.0
"""Most seconds from one reading of a device to the next, so that the latest one is fresh."""
TRAINING = ("step", "throughput", "loss", "learning_rate", "gradient_norm")
"""Numbers of training, by their keys in a JSON file."""
METRICS = {
    STEP.name: "step",
    **{NUMBERS[name].name: name for name in ("throughput", "loss", "learning_rate")},
    NUMBERS["grad_norm"].name: "gradient_norm",
}
"""The same by the metric in the file of a rank."""


class MachineReading(NamedTuple):
    """Last readings of devices and machine; NaN for a number that is unknown."""

    devices: tuple[DeviceReading, ...] = ()
    cpu_percent: float = math.nan
    memory_percent: float = math.nan


class MachineSource:
    """Processes that read the devices and the machine. No call here waits for a driver.

    Args:
        interval: seconds from one reading of the monitor to the next.
        deadline: longest time in seconds by which a reading may be late.
        commands: programs to be run instead of the usual ones, by source.
    """

    def __init__(self, interval: float, deadline: float, commands: Mapping[str, Sequence[str]] | None = None) -> None:
        names = [GPUS, HOST] + [NPUS] * (shutil.which(ascend.PROGRAM) is not None)
        every, commands = min(interval, QUICKEST), commands or {}
        self._processes = [ReadingProcess(name, every, deadline, commands.get(name, ())) for name in names]

    def start(self) -> None:
        """Begin to read."""
        for process in self._processes:
            process.start()

    def close(self) -> None:
        """End the processes without a wait for them."""
        for process in self._processes:
            process.close()

    @property
    def is_ready(self) -> bool:
        """True if every source has a reading, or does not answer."""
        return all(process.hung or process.reading is not None for process in self._processes)

    def look(self) -> MachineReading:
        """Return the last readings that are not too old."""
        samples = [sample for process in self._processes if (last := process.reading) for sample in last.samples]
        values = {sample.metric: sample.value for sample in samples if not sample.labels}
        available = values.get("probe_host_memory_available_bytes", math.nan)
        total = values.get("probe_host_memory_total_bytes", math.nan)
        return MachineReading(
            tuple(_devices(samples)),
            100 * values.get("probe_host_cpu_utilization_ratio", math.nan),
            100 * (1 - available / total) if total > 0 else math.nan,
        )


def _devices(samples: Sequence[Sample]) -> list[DeviceReading]:
    """Return the devices in ``samples``, by kind and number."""
    numbers_of: dict[tuple[str, str, str], dict[str, float]] = {}
    for sample in samples:
        kind, _, number = sample.metric.partition("_")
        if kind in KINDS and len(sample.labels) >= 2:
            identity, name = sample.labels[:2]
            numbers = numbers_of.setdefault((kind, identity, name), {})
            if number in DeviceReading._fields:
                numbers[number] = sample.value
    several = len({kind for kind, _, _ in numbers_of}) > 1
    return [
        DeviceReading(f"{kind}{identity}" if several else identity, name, **numbers)
        for (kind, identity, name), numbers in sorted(numbers_of.items(), key=lambda pair: _order(pair[0]))
    ]


def _order(place: tuple[str, str, str]) -> tuple[str, float, str]:
    kind, identity, _ = place
    return kind, int(identity) if identity.isdecimal() else math.inf, identity


class TrainingSource:
    """Numbers of training in a file: JSON that the program replaces, or the mapped file of a rank (``.metrics``). A
    file that is missing or half written is no error."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._json = None if path.suffix == SUFFIX else JsonNumbers([path])
        self._reader: MetricsReader | None = None
        self._seen: object = None

    def look(self) -> dict[str, float]:
        """Return the numbers if they are new since the last call, else none."""
        seen, numbers = self._read_json() if self._json is not None else self._read_metrics()
        if not numbers or seen == self._seen:
            return {}
        self._seen = seen
        return numbers

    def close(self) -> None:
        """Close the file."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _read_json(self) -> tuple[object, dict[str, float]]:
        assert self._json is not None
        for job in self._json.look():
            values = {name: job.values[name] for name in TRAINING if name in job.values}
            return (job.written, tuple(values.items())), values
        return None, {}

    def _read_metrics(self) -> tuple[object, dict[str, float]]:
        try:
            if self._reader is None or self._reader.inode != self._path.stat().st_ino:
                self.close()
                self._reader = MetricsReader(self._path)
            series, values = self._reader.read()
        except (OSError, ValueError):
            self.close()
            return None, {}
        numbers = {
            METRICS[metric_series.metric]: float(value)
            for metric_series, value in zip(series, values, strict=True)
            if metric_series.metric in METRICS and not metric_series.labels
        }
        return (self._reader.inode, numbers.get("step")), numbers
