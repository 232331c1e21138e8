"""Identity of a process on a machine: its id and the time of its start, which no later process of the id shares."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple


class ProcessState(NamedTuple):
    """State of a process, as ``/proc/PID/stat`` has it (proc(5)); the default is that of one that is gone."""

    state: str = "X"
    """One letter: ``R`` running, ``S`` and ``D`` waiting, ``T`` stopped, ``Z`` ended but not fetched, ``X`` gone."""
    started: int = -1
    """Time of its start in clock ticks since boot."""
    status: int = 0
    """Status of one that has ended, as ``wait`` returns it; 0 without permission."""

    @property
    def alive(self) -> bool:
        """True if it runs, waits or is stopped."""
        return self.state not in "ZX"


def process_state(pid: int | Literal["self"]) -> ProcessState:
    """Return the state of a process; that of one that is gone if the system has none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", errors="replace")
        fields = text.rpartition(")")[2].split()  # after the name in parentheses, which may contain any character
        return ProcessState(fields[0], int(fields[19]), int(fields[49]) if len(fields) > 49 else 0)
    except (OSError, ValueError, IndexError):
        return ProcessState()


def boot() -> str:
    """Return the identifier of this start of the machine; empty where there is none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
