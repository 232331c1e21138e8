"""Readings of Ascend NPUs by ``npu-smi info``, whose output is a table with two lines a chip."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Sequence
from itertools import pairwise

from probe.services.exporter.readings.catalogue import ReadingLine

PROGRAM = "npu-smi"
MEBIBYTE = 1 << 20
"""Bytes of what the program calls a megabyte."""
_USE = re.compile(r"(\d+)\s*/\s*(\d+)")
_BUS = re.compile(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]")


class AscendNpus:
    """All NPUs that ``npu-smi`` shows.

    Args:
        seconds: longest time that the program may take.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def read(self) -> ReadingLine:
        """Return a reading of all NPUs.

        Raises:
            OSError: if the program cannot be started.
            subprocess.SubprocessError: if it fails or takes too long.
        """
        done = subprocess.run(  # noqa: S603 - no argument is anybody else's
            [PROGRAM, "info"], capture_output=True, stdin=subprocess.DEVNULL, timeout=self._seconds, check=True
        )
        return parsed(done.stdout.decode("utf-8", "replace"))


def parsed(text: str) -> ReadingLine:
    """Return the reading that a table has."""
    line, names = ReadingLine(), dict[tuple[str, str], str]()
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in map(str.strip, text.splitlines()) if row]
    for first, second in pairwise(rows):
        if len(first) == len(second) == 3 and _BUS.fullmatch(second[1]):
            _add(line, first, second, names)
    for npu, chip, pid in _processes(rows):
        if (npu, chip) in names:
            line.use(int(pid), names[npu, chip])
    return line


def _add(line: ReadingLine, first: Sequence[str], second: Sequence[str], names: dict[tuple[str, str], str]) -> None:
    """Add the chip of two rows: number, name, health, power and temperature; chip, bus, utilization and memory."""
    npu, _, name = first[0].partition(" ")
    chip, _, physical = second[0].partition(" ")
    bus = names[npu, chip] = second[1]
    number = physical.strip() or (npu if chip == "0" else f"{npu}.{chip}")
    labels = {"npu_id": number, "npu_name": name.strip(), "npu_uuid": bus}
    line.devices += 1
    line.add("npu_healthy", labels, int(first[1] == "OK"))
    power, temperature, *_ = [*first[2].split(), "", ""]
    for metric, text in (
        ("npu_power_usage_watts", power),
        ("npu_temperature_celsius", temperature),
        ("npu_utilization_percent", second[2].partition(" ")[0]),
    ):
        if (value := _number(text)) is not None:
            line.add(metric, labels, value)
    memory = [(int(used), int(total)) for used, total in _USE.findall(second[2]) if int(total)]
    if memory:  # high-bandwidth memory is the last of them
        line.add("npu_memory_used_bytes", labels, memory[-1][0] * MEBIBYTE)
        line.add("npu_memory_total_bytes", labels, memory[-1][1] * MEBIBYTE)


def _processes(rows: Sequence[Sequence[str]]) -> Iterator[tuple[str, str, str]]:
    """Yield the NPU, the chip and the process of each row of the second table."""
    for row in rows:
        place = row[0].split()
        if len(row) == 4 and len(place) == 2 and row[1].isdecimal():
            yield place[0], place[1], row[1]


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:  # a dash: the chip does not measure it
        return None
