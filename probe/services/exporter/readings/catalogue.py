"""Metrics of devices and of the machine: names, help texts and labels."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from probe.core.output.metrics.catalogue import Metric

CORRECTED, UNCORRECTED = "corrected", "uncorrected"

_READINGS = {
    "utilization_percent": "Part of the time in which the device computed, in percent.",
    "memory_used_bytes": "Memory in use, in bytes.",
    "memory_total_bytes": "Memory of the device, in bytes.",
    "temperature_celsius": "Temperature, in degrees Celsius.",
    "power_usage_watts": "Power that the device takes, in watts.",
    "power_limit_watts": "Power that the device may take, in watts.",
}
_GPU, _NPU = ("gpu_id", "gpu_name", "gpu_uuid"), ("npu_id", "npu_name", "npu_uuid")

DEVICE_METRICS = (
    *(Metric(f"gpu_{name}", help_text, _GPU) for name, help_text in _READINGS.items()),
    Metric(
        "gpu_ecc_errors_total", "Errors of memory by kind, over the life of the device.", (*_GPU, "kind"), "counter"
    ),
    Metric("gpu_xid_last_code", "Code of the last Xid error since the exporter began; 0 if there was none.", _GPU),
    Metric("gpu_throttle_active", "1 while the clock is kept low for a reason.", (*_GPU, "reason")),
    *(Metric(f"npu_{name}", help_text, _NPU) for name, help_text in _READINGS.items()),
    Metric("npu_healthy", "1 if the driver reports that the device is in order.", _NPU),
)
"""Metrics of GPUs and NPUs; a reading that a device lacks is left out."""

_DISK = ("device", "fstype", "mountpoint")
HOST_METRICS = (
    Metric("probe_host_cpu_utilization_ratio", "Part of the time in which the processors worked, 0 to 1."),
    Metric("probe_host_cpus", "Logical processors."),
    Metric("probe_host_memory_total_bytes", "Memory of the machine, in bytes."),
    Metric("probe_host_memory_available_bytes", "Memory that programs can still get without swapping, in bytes."),
    Metric("probe_host_swap_total_bytes", "Swap space, in bytes."),
    Metric("probe_host_swap_used_bytes", "Swap space in use, in bytes."),
    Metric("probe_host_load1", "Processes that run or wait, on average over a minute."),
    Metric("probe_host_load5", "Processes that run or wait, on average over 5 minutes."),
    Metric("probe_host_load15", "Processes that run or wait, on average over 15 minutes."),
    Metric("probe_host_disk_total_bytes", "Size of a file system, in bytes.", _DISK),
    Metric("probe_host_disk_free_bytes", "Space that programs of users can still fill, in bytes.", _DISK),
    Metric("probe_host_disk_hung", "1 while a file system does not answer.", _DISK),
    Metric("probe_host_network_receive_bytes_total", "Received bytes.", ("device",), "counter"),
    Metric("probe_host_network_transmit_bytes_total", "Sent bytes.", ("device",), "counter"),
)
"""Metrics of the machine."""

READINGS: dict[str, Metric] = {metric.name: metric for metric in (*DEVICE_METRICS, *HOST_METRICS)}
"""Every metric that a reading may have, by name."""


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
