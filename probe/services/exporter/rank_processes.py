"""Processes of ranks as this process sees them, also where a container gives them other ids."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from probe.core.process_identity import process_state

SEARCH_SECONDS = 30.0
"""Time between two searches for the same process among those of containers."""
INDEX_SECONDS = 1.0
"""Time for which the result of a search serves for other processes."""

Process = tuple[int, int]
"""Id and start of a process; the start in clock ticks since boot, which a later process of that id does not share."""


class RankProcesses:
    """Finder of processes. Nothing here signals a process or waits for one."""

    def __init__(self) -> None:
        self._ids: dict[Process, int] = {}
        self._searched: dict[Process, float] = {}
        self._index: dict[Process, int] = {}
        self._indexed = -INDEX_SECONDS

    def find(self, process: Process) -> int:
        """Return the id of a living process here; 0 if there is none."""
        for pid in (self._ids.get(process, 0), process[0]):
            if pid and _is_alive(pid, process[1]):
                self._ids[process] = pid
                return pid
        if self._ids.pop(process, 0):
            return 0  # it has ended
        now = time.monotonic()
        if now - self._searched.get(process, -SEARCH_SECONDS) < SEARCH_SECONDS:
            return 0
        self._searched[process] = now
        if now - self._indexed >= INDEX_SECONDS:
            self._index, self._indexed = dict(_inner_processes()), now
        if pid := self._index.get(process, 0):
            self._ids[process] = pid
        return pid

    def forget(self, process: Process) -> None:
        """Release memory of a process."""
        self._ids.pop(process, None)
        self._searched.pop(process, None)


def _is_alive(pid: int, started: int) -> bool:
    state = process_state(pid)
    return state.started == started and state.alive


def _inner_processes() -> Iterator[tuple[Process, int]]:
    """Yield the processes that have another id inside a container: that id and the start, and the id here."""
    for place in Path("/proc").iterdir():
        if not place.name.isdecimal():
            continue
        try:
            status = (place / "status").read_text("utf-8", errors="replace")
        except OSError:
            continue
        inner = status.partition("\nNSpid:")[2].partition("\n")[0].split()
        if len(inner) > 1:
            yield (int(inner[-1]), process_state(int(place.name)).started), int(place.name)
