"""Memory and utilisation as far as they are known: numbers that the program has logged, and the readings of a
performance monitor."""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from probe.core.analysis.performance.step_table import HOUR, TABLE, StepTable
from probe.core.storage.location import Place
from probe.core.storage.performance_file import mean, readings
from probe.core.storage.problems import Problems

DEVICE_USE = re.compile(r"(?:^|[/_.\-])(?:gpu|npu|cuda|device)[/_.\-]?\d*[/_.\-](?:util|utili[sz]ation)", re.IGNORECASE)
"""Names of numbers that are the utilisation of a GPU or NPU, in percent or as a ratio up to 1."""
PERCENT = re.compile(r"percent|pct|%", re.IGNORECASE)


class LoggedUse(NamedTuple):
    """Number about memory or utilisation, over all ranks and steps."""

    name: str
    mean: float
    highest: float
    rank: int
    """Rank with the highest value."""


class DeviceUse(NamedTuple):
    """Readings of one device."""

    source: str
    """File of the readings."""
    id: str
    name: str
    readings: int
    utilization_percent: float
    """Mean; NaN if it is unknown, as the others are."""
    memory_percent: float
    """Mean."""
    highest_memory_percent: float
    highest_temperature_celsius: float


class HostUse(NamedTuple):
    """Readings of one machine."""

    source: str
    readings: int
    cpu_percent: float
    """Mean."""
    memory_percent: float
    """Mean."""
    highest_memory_percent: float


class Devices(NamedTuple):
    """All that is known about memory and utilisation."""

    logged: tuple[LoggedUse, ...]
    devices: tuple[DeviceUse, ...]
    hosts: tuple[HostUse, ...]

    @property
    def utilization_percent(self) -> float:
        """Mean utilisation of all devices: as read by a performance monitor, else as logged; NaN if it is unknown."""
        read = mean(device.utilization_percent for device in self.devices)
        if math.isfinite(read):
            return read
        return mean(_percent(number) for number in self.logged if DEVICE_USE.search(number.name))


def devices(
    table: StepTable, first: int, root: Place, began: float, hours: float | None, problems: Problems
) -> Devices:
    """Return memory and utilisation from step ``first`` on.

    Args:
        began: time at which the run began, before which readings are another run's; 0 if it is unknown.
        hours: readings of so many hours before the last one count; all if None.
        problems: receives the lines of files of readings that cannot be parsed.
    """
    return Devices(_logged(table, first), *_read(root, began, hours, problems))


def _logged(table: StepTable, first: int) -> tuple[LoggedUse, ...]:
    uses = []
    for name, column in table.uses.items():
        query = (
            f"SELECT avg({column}), max({column}), first(rank ORDER BY {column} DESC, rank) FROM {TABLE} "  # noqa: S608 - our own words
            f"WHERE step >= ? AND isfinite({column})"
        )
        mean, highest, rank = table.connection.execute(query, [first]).fetchone() or (None, None, None)
        if mean is not None and highest is not None and rank is not None:
            uses.append(LoggedUse(name, mean, highest, rank))
    return tuple(uses)


def _percent(number: LoggedUse) -> float:
    is_ratio = number.highest <= 1 and not PERCENT.search(number.name)
    return 100 * number.mean if is_ratio else number.mean


class _Average:
    """Mean and highest of some finite numbers."""

    def __init__(self) -> None:
        self._sum, self._number, self.highest = 0.0, 0, math.nan

    def add(self, value: float) -> None:
        if math.isfinite(value):
            self._sum, self._number = self._sum + value, self._number + 1
            self.highest = value if math.isnan(self.highest) else max(self.highest, value)

    @property
    def mean(self) -> float:
        return self._sum / self._number if self._number else math.nan


class _Averages(dict[str, _Average]):
    """Averages of the fields of readings, by name."""

    def __init__(self, *names: str) -> None:
        super().__init__((name, _Average()) for name in names)
        self.readings = 0

    def add(self, reading: NamedTuple) -> None:
        self.readings += 1
        for name, average in self.items():
            average.add(getattr(reading, name))


def _read(
    root: Place, began: float, hours: float | None, problems: Problems
) -> tuple[tuple[DeviceUse, ...], tuple[HostUse, ...]]:
    """Return the use of each device and of each machine, from the files in ``root``, which are read twice."""
    if hours is not None:
        last = max((reading.time for _, reading in readings(root, Problems())), default=0.0)
        began = max(began, last - hours * HOUR)
    hosts: dict[str, _Averages] = {}
    devices_by_name: dict[tuple[str, str, str], _Averages] = {}
    for source, reading in readings(root, problems):
        if reading.time < began:
            continue
        hosts.setdefault(source, _Averages("cpu_percent", "memory_percent")).add(reading)
        for device in reading.devices:
            averages = _Averages("utilization_percent", "memory_percent", "temperature_celsius")
            devices_by_name.setdefault((source, device.id, device.name), averages).add(device)
    return (
        tuple(
            DeviceUse(*place, of.readings, use.mean, memory.mean, memory.highest, temperature.highest)
            for place, of in sorted(devices_by_name.items(), key=lambda pair: pair[0])
            for use, memory, temperature in [of.values()]
        ),
        tuple(
            HostUse(source, of.readings, cpu.mean, memory.mean, memory.highest)
            for source, of in sorted(hosts.items(), key=lambda pair: pair[0])
            for cpu, memory in [of.values()]
        ),
    )
