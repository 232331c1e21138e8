"""File of the readings of a performance monitor: one JSON object a line, written and parsed here."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from probe.core.language import message
from probe.core.storage.files import LONGEST_LINE, opened
from probe.core.storage.location import Place, contents
from probe.core.storage.problems import NAMED, Problems, cannot_be_read

NAME = "performance.jsonl"
PATTERN = "performance*.jsonl"
"""Names of these files in the directory of a run: several machines write one each."""
MOST_BYTES = 64 << 20
"""Size at which a file becomes the older one, whose place it takes."""


class DeviceReading(NamedTuple):
    """Reading of one GPU or NPU; NaN for a reading that it lacks."""

    id: str
    name: str
    utilization_percent: float = math.nan
    memory_used_bytes: float = math.nan
    memory_total_bytes: float = math.nan
    temperature_celsius: float = math.nan
    power_usage_watts: float = math.nan

    @property
    def memory_percent(self) -> float:
        """Memory in use, in percent."""
        total = self.memory_total_bytes
        return 100 * self.memory_used_bytes / total if total > 0 else math.nan


class PerformanceReading(NamedTuple):
    """One reading of a machine and of the training on it; NaN for a number that is unknown."""

    time: float
    """Seconds since the epoch."""
    devices: tuple[DeviceReading, ...] = ()
    cpu_percent: float = math.nan
    memory_percent: float = math.nan
    """Memory of the machine in use."""
    step: float = math.nan
    throughput: float = math.nan
    """Samples a second."""
    loss: float = math.nan
    learning_rate: float = math.nan
    gradient_norm: float = math.nan

    @property
    def utilization_percent(self) -> float:
        """Mean utilisation of all devices."""
        return mean(device.utilization_percent for device in self.devices)

    @property
    def device_memory_percent(self) -> float:
        """Mean memory in use of all devices."""
        return mean(device.memory_percent for device in self.devices)


NUMBERS = tuple(name for name in PerformanceReading._fields if name not in ("time", "devices"))
DEVICE_NUMBERS = DeviceReading._fields[2:]


def mean(values: Iterator[float]) -> float:
    """Return the mean of the finite ``values``; NaN if there are none."""
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else math.nan


def older(path: Path) -> Path:
    """Return the name that the file ``path`` gets when it is full."""
    return path.with_name(f"{path.stem}-older{path.suffix}")


def line(reading: PerformanceReading) -> str:
    """Return the line of ``reading``; numbers that are not finite are null."""
    devices = [{**device._asdict(), **_numbers(device, DEVICE_NUMBERS)} for device in reading.devices]
    fields = {"time": reading.time, "devices": devices, **_numbers(reading, NUMBERS)}
    return json.dumps(fields, separators=(",", ":"), allow_nan=False) + "\n"


def _numbers(of: NamedTuple, names: tuple[str, ...]) -> dict[str, float | None]:
    values = {name: getattr(of, name) for name in names}
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


def parsed(text: str) -> PerformanceReading:
    """Parse a line.

    Raises:
        ValueError: if it is no reading.
    """
    fields = json.loads(text)
    if not isinstance(fields, dict) or not math.isfinite(_number(fields, "time")):
        raise ValueError("expected an object with a time")
    devices = fields.get("devices", [])
    if not isinstance(devices, list) or not all(isinstance(device, dict) for device in devices):
        raise ValueError("expected a list of devices")
    return PerformanceReading(
        _number(fields, "time"),
        tuple(
            DeviceReading(
                str(device.get("id", "")),
                str(device.get("name", "")),
                *(_number(device, name) for name in DEVICE_NUMBERS),
            )
            for device in devices
        ),
        *(_number(fields, name) for name in NUMBERS),
    )


def _number(fields: Mapping[str, Any], name: str) -> float:
    value = fields.get(name)
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"expected a number as {name}, got {str(value)[:40]!r}")
    return float(value)


def readings(root: Place, problems: Problems) -> Iterator[tuple[str, PerformanceReading]]:
    """Yield the readings of all files in ``root``, each with the name of its file; lines that cannot be parsed are
    recorded in ``problems``."""
    for path in contents(root, PATTERN):
        wrong = 0
        try:
            with opened(path) as file:
                number = 0
                while data := file.readline(4 * LONGEST_LINE):
                    number += 1
                    try:
                        yield path.name, parsed(data.decode("utf-8"))
                    except (ValueError, OverflowError, RecursionError):
                        wrong += 1
                        if wrong <= NAMED:
                            problems.add(
                                path, message("expected a reading of a performance monitor: line left out"), number
                            )
        except OSError as error:
            problems.add(path, message("cannot be read: {reason}", reason=error.strerror))
        if wrong > NAMED:
            problems.add(path, cannot_be_read(wrong - NAMED))
