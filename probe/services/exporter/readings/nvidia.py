"""Readings of NVIDIA GPUs by NVML.

Every call may fail: a vGPU has no temperature, a GPU that is divided by MIG has no utilization, some boards measure no
power. Such a reading is left out. Functions: https://docs.nvidia.com/deploy/nvml-api/
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from probe.services.exporter.readings.catalogue import CORRECTED, UNCORRECTED, Number, ReadingLine

THROTTLE = {
    0x02: "applications_clocks_setting",
    0x04: "sw_power_cap",
    0x08: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
}
"""Reasons for which NVML reports a low clock, by their bits; that a GPU is idle is none."""
XID = 0x08
"""Bit of the events that are Xid errors."""


class NvidiaGpus:
    """All GPUs that NVML shows."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._missing: tuple[type[Exception], ...] = ()
        self._events: Any = None
        self._xid: dict[str, int] = {}

    def read(self) -> ReadingLine:
        """Return a reading of all GPUs; without a driver, one that says so."""
        line = ReadingLine()
        if self._nvml is None:
            line.note = self._begin()
        if self._nvml is not None:
            for index in range(self._nvml.nvmlDeviceGetCount()):
                self._add(line, index)
        return line

    def wait(self, seconds: float) -> bool:
        """Wait for Xid errors; return at once with False if this driver reports none."""
        if self._events is None:
            return False
        try:
            event = self._nvml.nvmlEventSetWait_v2(self._events, max(1, int(seconds * 1e3)))
            self._xid[_text(self._nvml.nvmlDeviceGetUUID(event.device))] = int(event.eventData)
        except self._nvml.NVMLError_Timeout:
            pass
        except self._missing:
            self._events, self._xid = None, {}
        return True

    def _begin(self) -> str:
        try:
            import pynvml as nvml  # type: ignore[import-untyped, unused-ignore]
        except ImportError:
            return "nvidia-ml-py is not installed"
        # Functions that this version of the package or of the driver does not have count as readings that are missing.
        self._missing = (nvml.NVMLError, AttributeError, getattr(nvml, "NVMLLibraryMismatchError", nvml.NVMLError))
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            return f"NVML: {error}"
        self._nvml = nvml
        self._listen()
        return ""

    def _listen(self) -> None:
        """Register for the Xid errors of all GPUs that report them."""
        nvml = self._nvml
        try:
            events = nvml.nvmlEventSetCreate()
        except self._missing:
            return
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                nvml.nvmlDeviceRegisterEvents(handle, XID, events)
                self._xid[_text(nvml.nvmlDeviceGetUUID(handle))] = 0
                self._events = events
            except self._missing:
                continue

    def _add(self, line: ReadingLine, index: int) -> None:
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            name, uuid = _text(nvml.nvmlDeviceGetName(handle)), _text(nvml.nvmlDeviceGetUUID(handle))
        except self._missing:  # such as one that has fallen off the bus
            line.unreadable += 1
            return
        line.devices += 1
        labels = {"gpu_id": str(index), "gpu_name": name, "gpu_uuid": uuid}
        for metric, more, read in self._readings(handle):
            try:
                line.add(metric, {**labels, **more}, read())
            except self._missing:
                continue
        if uuid in self._xid:
            line.add("gpu_xid_last_code", labels, self._xid[uuid])
        try:
            reasons = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
            for bit, reason in THROTTLE.items():
                line.add("gpu_throttle_active", {**labels, "reason": reason}, int(bool(reasons & bit)))
        except self._missing:
            pass
        try:
            for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle):
                line.use(int(process.pid), uuid)
        except self._missing:
            pass

    def _readings(self, handle: Any) -> Iterator[tuple[str, dict[str, str], Callable[[], Number]]]:
        """Yield metrics, further labels, and the calls that return the values in the units of the metrics."""
        nvml = self._nvml
        yield "gpu_utilization_percent", {}, lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu
        yield "gpu_memory_used_bytes", {}, lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used
        yield "gpu_memory_total_bytes", {}, lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total
        yield "gpu_temperature_celsius", {}, lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
        yield "gpu_power_usage_watts", {}, lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1e3
        yield "gpu_power_limit_watts", {}, lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3
        kinds = {CORRECTED: nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, UNCORRECTED: nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED}
        for kind, number in kinds.items():
            read = partial(nvml.nvmlDeviceGetTotalEccErrors, handle, number, nvml.NVML_AGGREGATE_ECC)
            yield "gpu_ecc_errors_total", {"kind": kind}, read


def _text(name: str | bytes) -> str:
    """Return a name as text; older versions of the package return bytes."""
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else name
