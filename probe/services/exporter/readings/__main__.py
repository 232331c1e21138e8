"""Program of the readings: ``python -m probe.services.exporter.readings SOURCE INTERVAL DEADLINE``."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable, Sequence

from probe.services.exporter.readings.catalogue import ReadingLine

NICENESS = 10
WAIT_SECONDS = 1.0
"""Longest wait for events of a driver, after which the end of the input is noticed."""


def main(arguments: Sequence[str]) -> int:
    """Write a line for each reading until standard input ends."""
    source, interval, deadline = arguments[0], float(arguments[1]), float(arguments[2])
    os.nice(NICENESS)
    read, wait = reader_of(source, deadline)
    while True:
        end = time.monotonic() + interval
        sys.stdout.write(read().text())
        sys.stdout.flush()
        while (seconds := end - time.monotonic()) > 0:
            waited = wait(min(seconds, WAIT_SECONDS))
            if select.select([sys.stdin], [], [], 0 if waited else seconds)[0]:
                return 0


def reader_of(source: str, deadline: float) -> tuple[Callable[[], ReadingLine], Callable[[float], bool]]:
    """Return a function that takes a reading of ``source``, and a function that waits for an event of it; the latter
    returns False at once if the source has no events."""
    if source == "nvml":
        from probe.services.exporter.readings.nvidia import NvidiaGpus

        gpus = NvidiaGpus()
        return gpus.read, gpus.wait
    if source == "npu":
        from probe.services.exporter.readings.ascend import AscendNpus

        return AscendNpus(deadline).read, lambda seconds: False  # noqa: ARG005 - the interface
    if source == "host":
        from probe.services.exporter.readings.host import HostReader

        return HostReader(deadline / 2).read, lambda seconds: False  # noqa: ARG005 - the interface
    raise ValueError(f"expected nvml, npu or host, got {source}")


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except BrokenPipeError:
        sys.exit(0)
