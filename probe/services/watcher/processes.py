"""Processes of ranks, as another process of the same user can see them: alive, stopped, gone and by which cause."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
import time
from collections import deque
from contextlib import suppress
from pathlib import Path

from probe.core.language import joined, message
from probe.core.process_identity import process_state

_INFO = struct.Struct("<QQ11Ii")
_GET_INFO = 3 << 30 | _INFO.size << 16 | 0xFF << 8 | 11
"""``PIDFD_GET_INFO`` of Linux 6.13; the exit code since 6.15."""
_EXIT = 1 << 3
_STATES = {
    "T": message("stopped by a signal"),
    "t": message("stopped by a debugger"),
    "D": message("waits in the kernel (disk, network file system or driver)"),
}
_CGROUPS = Path("/sys/fs/cgroup")
_MEMORY_SECONDS = 5.0
"""Time before the loss of a process in which memory that ran out counts as its cause."""


class RankProcess:
    """Process of a rank. Nothing here stops it or waits for it.

    Args:
        pid: its id.
        started: time of its start in clock ticks since boot, which a later process of the same id does not share.
    """

    def __init__(self, pid: int, started: int) -> None:
        self.pid, self._started = pid, started
        self._handle = -1
        with suppress(OSError, AttributeError):
            self._handle = os.pidfd_open(pid)
        if self._handle >= 0 and process_state(pid).started != started:
            self.close()
        self._memory = MemoryEvents(pid)
        self._memory.look()

    @property
    def handle(self) -> int:
        """File descriptor that becomes readable when the process ends; -1 if there is none."""
        return self._handle

    def alive(self) -> bool:
        """Return true if the process runs or is stopped."""
        if self._handle >= 0:
            ready = select.poll()
            ready.register(self._handle, select.POLLIN)
            if ready.poll(0):
                return False
        state = process_state(self.pid)
        self._memory.look()
        return state.started == self._started and state.alive

    def state(self) -> str:
        """Return a clause about a process that cannot run, such as ``stopped by a signal``; empty for any other."""
        return _STATES.get(process_state(self.pid).state, "")

    def death(self) -> str:
        """Return the cause of the loss as a clause such as ``killed by SIGKILL``, as far as it can be known: only a
        parent is sure to get it."""
        status = self._status()
        killed = status is None or status & 0x7F == signal.SIGKILL
        if killed and (memory := self._memory.recent()):
            return joined("; ", [_cause(status), memory])
        return _cause(status)

    def send(self, number: int) -> None:
        """Send a signal; to a process that is gone, do nothing."""
        with suppress(OSError):
            if self._handle >= 0:
                signal.pidfd_send_signal(self._handle, number)
            elif self.alive():
                os.kill(self.pid, number)

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def _status(self) -> int | None:
        """Return the status that ``wait`` would return: before the parent has fetched it, or later on Linux 6.15."""
        for _ in range(2):
            state, started, status = process_state(self.pid)
            if started == self._started and state == "Z":
                return status
            buffer = bytearray(_INFO.pack(_EXIT, *[0] * 13))
            with suppress(OSError):
                fcntl.ioctl(self._handle, _GET_INFO, buffer)
                fields = _INFO.unpack(buffer)
                if fields[0] & _EXIT:
                    return int(fields[13])
        return None


def _cause(status: int | None) -> str:
    if status is None:
        return message("gone, with an exit code that only its parent knows")
    if number := status & 0x7F:
        with suppress(ValueError):
            return message("killed by {signal}", signal=signal.Signals(number).name)
        return message("killed by signal {number}", number=number)
    return message("exited with code {code}", code=status >> 8 & 0xFF)


class MemoryEvents:
    """Count of processes that the kernel has killed since memory ran out, in the control group of a process or, where
    that cannot be read, on the whole machine."""

    def __init__(self, pid: int) -> None:
        counts = ((path, _count(path)) for path in _places(pid))
        self._path = next((path for path, count in counts if count is not None), None)
        self._seen: deque[tuple[float, int]] = deque()

    def look(self) -> None:
        """Remember the count; the memory reaches back for some seconds."""
        now = time.monotonic()
        if not self._seen or now - self._seen[-1][0] > 1:
            self._seen.append((now, self._now()))
        while len(self._seen) > 1 and now - self._seen[1][0] > _MEMORY_SECONDS:
            self._seen.popleft()

    def recent(self) -> str:
        """Return a sentence about memory that ran out in the last seconds; empty if it did not."""
        killed = self._now() - self._seen[0][1] if self._seen else 0
        if killed <= 0:
            return ""
        whole = self._path == Path("/proc/vmstat")
        where = message("this machine" if whole else "its control group")
        return message("out of memory: the kernel killed {killed} in {where}", killed=killed, where=where)

    def _now(self) -> int:
        return (_count(self._path) or 0) if self._path else 0


def _places(pid: int) -> list[Path]:
    """Return the files with the count, the narrowest first: control groups of both versions, then the machine."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    places = []
    for line in lines:
        number, controllers, path = line.split(":", 2)
        inside = path.lstrip("/")
        if "memory" in controllers.split(","):
            places += [_CGROUPS / "memory" / inside / "memory.oom_control", _CGROUPS / "memory/memory.oom_control"]
        elif number == "0":
            places += [root / inside / "memory.events" for root in (_CGROUPS, _CGROUPS / "unified")]
    return [*places, _CGROUPS / "memory.events", Path("/proc/vmstat")]


def _count(path: Path) -> int | None:
    try:
        lines = path.read_text("utf-8").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)
