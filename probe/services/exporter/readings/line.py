"""Line that a process of readings sends for each reading."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

Number = int | float


@dataclass
class ReadingLine:
    """One reading."""

    series: list[tuple[str, Mapping[str, str], Number]] = field(default_factory=list)
    """Name of a metric, labels, value."""
    devices: int = 0
    unreadable: int = 0
    """Devices that the driver counts and that cannot be read."""
    processes: dict[str, list[str]] = field(default_factory=dict)
    """Names of devices by the id of a process that uses them."""
    note: str = ""
    """Reason for which there is nothing to read."""

    def add(self, metric: str, labels: Mapping[str, str], value: Number) -> None:
        """Add a series."""
        self.series.append((metric, labels, value))

    def use(self, pid: int, device: str) -> None:
        """Add a process that uses a device."""
        self.processes.setdefault(str(pid), []).append(device)

    def text(self) -> str:
        """Return the line with its end."""
        return json.dumps(self.__dict__, separators=(",", ":")) + "\n"
