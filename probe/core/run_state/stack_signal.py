"""Signal at which a process writes the stacks of its threads, also while one of them holds the interpreter's lock."""

from __future__ import annotations

import faulthandler
import os
import signal
from pathlib import Path
from typing import IO

FIRST_TRIED = 10
"""Position of the first signal that is tried, counted from the last one down: the very last are the most likely to be
in use."""


class StackSignal:
    """Registration of the signal :attr:`number`, 0 if none is free.

    One that nobody handles is taken, from the real-time signals, which schedulers and launchers leave alone. It is not
    chained: with nobody before, chaining would end the process, and system calls would not be started again.

    Args:
        path: file that gets the stacks.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.number = path, 0
        free = _free_signal()
        if not free:
            return
        self._file = self._registered(free)
        self.number = int(free)

    def _registered(self, number: int) -> IO[str]:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        file = os.fdopen(descriptor, "a")
        faulthandler.register(number, file=file, all_threads=True, chain=False)
        return file

    def renew(self) -> None:
        """Make the file again, which was removed.

        Raises:
            OSError: if it cannot be made.
        """
        if self.number:
            before, self._file = self._file, self._registered(self.number)
            before.close()

    def close(self) -> None:
        """Remove the registration; a signal that was sent before is ignored."""
        if self.number:
            if handles(os.getpid(), self.number):
                faulthandler.unregister(self.number)
            self._file.close()
            self.number = 0


def handles(pid: int, number: int) -> bool:
    """Return true if the process has a handler of the signal, so that it does not end by it."""
    return _listed(pid, "SigCgt", number)


def _free_signal() -> int:
    real_time = range(signal.SIGRTMAX - FIRST_TRIED, signal.SIGRTMIN, -1)
    pid = os.getpid()
    for number in real_time:
        if not any(_listed(pid, field, number) for field in ("SigCgt", "SigIgn", "SigBlk")):
            return number
    return 0


def _listed(pid: int, field: str, number: int) -> bool:
    """Return true if a mask of signals in the status of a process has the signal, also one that C code handles."""
    try:
        status = Path(f"/proc/{pid}/status").read_text("utf-8", errors="replace")
    except OSError:
        return False
    mask = next((line.split()[1] for line in status.splitlines() if line.startswith(f"{field}:")), "0")
    return bool(int(mask, 16) >> (number - 1) & 1)
