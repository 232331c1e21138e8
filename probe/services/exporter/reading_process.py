"""Process that takes readings, as the exporter sees it: followed with a deadline, started again, never waited for.

A call of a driver may never return, and a process in such a call cannot even be killed. So the exporter calls none
itself, and goes on without a process that does not answer.
"""

from __future__ import annotations

import json
import logging
import math
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from probe.core.child_process import python_module
from probe.core.door import attempt
from probe.core.faults import Faults
from probe.core.messages import printable
from probe.core.worker import Worker
from probe.services.exporter.readings.catalogue import READINGS

MODULE = "probe.services.exporter.readings"
MOST_BYTES = 4 << 20
"""Most bytes of a line."""
MOST_SERIES = 20_000
"""Most series of a reading."""
MOST_LEFT = 2
"""Most processes that could not be killed beside which another one is started."""
FIRST = 4
"""Multiple of the deadline in which the first reading comes: drivers take their time to begin."""
LONGEST_WAIT = 300.0
"""Most seconds between two starts. The wait begins with a second, or with the interval of the readings if that is less,
and doubles as long as the process does not stay."""
STEADY_SECONDS = 60.0
"""Time after which a process that has ended or hangs had worked well: the wait begins anew."""
LONGEST_TEXT = 200

_log = logging.getLogger("probe.exporter")


class Sample(NamedTuple):
    """Value of one series."""

    metric: str
    labels: tuple[str, ...]
    """Values of the labels, in the order of the catalogue."""
    value: float


class Reading(NamedTuple):
    """One reading of a process."""

    time: float
    """Its time on the monotonic clock."""
    samples: tuple[Sample, ...]
    devices: int
    unreadable: int
    processes: Mapping[int, tuple[str, ...]]
    """Names of devices by the process that uses them."""
    note: str


class ReadingProcess:
    """Follower of one process of readings, on a thread of its own.

    Args:
        name: name of the source.
        command: program and arguments; missing: that of :mod:`probe.services.exporter.readings`.
        interval: seconds from one reading to the next.
        deadline: longest time in seconds by which a reading may be late.
    """

    def __init__(self, name: str, interval: float, deadline: float, command: Sequence[str] = ()) -> None:
        self.name, self._interval, self._deadline = name, interval, deadline
        self._command = [*(command or python_module(MODULE, name, str(interval), str(deadline)))]
        self._process: subprocess.Popen[bytes] | None = None
        self._left: list[subprocess.Popen[bytes]] = []
        self._shortest = self._wait = min(1.0, interval)
        self._faults, self._closing = Faults("the exporter goes on"), False
        self._worker: Worker | None = None
        self._last: Reading | None = None
        self._began = time.monotonic()
        self._shown = ""
        self.hung = False
        """True while the last reading is late."""
        self.starts = 0
        self.malformed = 0
        """Lines and series so far that could not be understood."""

    def start(self) -> None:
        """Begin to read."""
        where = f"readings of {self.name}"
        self._worker = Worker(f"probe-readings-{self.name}", where, self._faults, look=self._look, due=0.0)

    def close(self) -> None:
        """End the process, without a wait for it."""
        self._closing = True
        if self._worker is not None:
            self._worker.end()
        if (process := self._process) is not None:
            _kill(process)

    @property
    def reading(self) -> Reading | None:
        """Last reading, if it is not too old."""
        last = self._last
        return last if last is not None and self.age < self._interval + self._deadline else None

    @property
    def age(self) -> float:
        """Seconds since the last reading, or since the start if there was none."""
        return time.monotonic() - (self._began if self._last is None else self._last.time)

    def _look(self) -> float:
        """Follow a process until it ends; return the seconds until the next is started."""
        began = time.monotonic()
        self._left = [process for process in self._left if process.poll() is None]
        if len(self._left) < MOST_LEFT:
            attempt(self._faults, f"readings of {self.name}", self._follow)
        wait = self._shortest if time.monotonic() - began > STEADY_SECONDS else self._wait
        self._wait = min(2 * wait, LONGEST_WAIT)
        return wait

    def _follow(self) -> None:
        """Start the process and take its readings until it ends or is late."""
        self.starts += 1
        try:
            process = subprocess.Popen(  # noqa: S603 - our own module, or a command of the person who starts the exporter
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                cwd="/",  # one that hangs keeps no folder busy
                env=_environment(),
                start_new_session=True,
            )
        except OSError as error:
            self._note(f"{self._command[0]} cannot be started: {error.strerror}")
            return
        self._process = process
        try:
            if self._closing:
                return
            for line in self._lines(process):
                self._take(line)
        finally:
            self._process = None
            _kill(process)
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()
            if process.poll() is None:
                self._left.append(process)

    def _lines(self, process: subprocess.Popen[bytes]) -> Iterator[bytes]:
        """Yield the lines of ``process`` until it ends, is late, or sends a line without an end."""
        assert process.stdout is not None
        descriptor, buffer = process.stdout.fileno(), b""
        due = time.monotonic() + FIRST * self._deadline
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while (seconds := due - time.monotonic()) > 0:
                if not selector.select(seconds):
                    continue
                data = os.read(descriptor, 1 << 16)
                if not data:
                    if not self._closing:
                        self._note("the process of the readings has ended by itself; it is started again")
                    return
                *lines, buffer = (buffer + data).split(b"\n")
                for line in lines:
                    due = time.monotonic() + self._interval + self._deadline
                    yield line
                if len(buffer) > MOST_BYTES:
                    self.malformed += 1
                    return
        self.hung = True
        self._note(f"no reading within {self._deadline:g} s after its time: a driver does not answer")

    def _take(self, line: bytes) -> None:
        """Keep the reading of ``line``."""
        try:
            reading, malformed = parsed(line)
        except (ValueError, TypeError, AttributeError, RecursionError):
            self.malformed += 1
            return
        self.malformed += malformed
        self._last, self.hung = reading, False
        self._note(reading.note)

    def _note(self, text: str) -> None:
        """Log a reason for which there are no readings, once until it changes."""
        if text and text != self._shown:
            _log.warning("source=%s %s; the rest is served", self.name, printable(text))
        self._shown = text


def parsed(line: bytes) -> tuple[Reading, int]:
    """Return the reading in ``line``, and the number of series in it that are left out.

    Raises:
        ValueError: if it is no reading; TypeError, AttributeError or RecursionError, if it is something else.
    """
    message: dict[str, Any] = json.loads(line)
    rows = message.get("series")
    if not isinstance(rows, list) or len(rows) > MOST_SERIES:
        raise ValueError(f"expected a list of at most {MOST_SERIES} series")
    samples = {(sample.metric, sample.labels): sample for sample in map(_sample, rows) if sample is not None}
    processes = {
        int(pid): tuple(str(name)[:LONGEST_TEXT] for name in names)
        for pid, names in message.get("processes", {}).items()
    }
    reading = Reading(
        time=time.monotonic(),
        samples=tuple(samples.values()),
        devices=_count(message.get("devices", 0)),
        unreadable=_count(message.get("unreadable", 0)),
        processes=processes,
        note=str(message.get("note", ""))[:LONGEST_TEXT],
    )
    return reading, len(rows) - len(samples)


def _sample(row: Any) -> Sample | None:
    """Return a series; None if it is none of the catalogue."""
    if not isinstance(row, list) or len(row) != 3 or not isinstance(row[0], str) or not isinstance(row[1], dict):
        return None
    name, labels, value = row
    metric = READINGS.get(name)
    if metric is None or labels.keys() != set(metric.labels) or type(value) not in (int, float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    if not math.isfinite(number):
        return None
    return Sample(name, tuple(printable(str(labels[key])[:LONGEST_TEXT]) for key in metric.labels), number)


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MOST_SERIES:
        raise ValueError("expected a number of devices")
    return value


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and those that it has started."""
    with suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)


def _environment() -> dict[str, str]:
    """Return the environment whose relative folders of modules are found from another current directory."""
    paths = [str(Path(path).resolve()) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
