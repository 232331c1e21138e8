"""Number of a run among those of one program under ``probe run``: the processes that such a program starts without a
launcher all have rank 0, and so have two models of a process."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from probe.core.backend.protocols import Groups
from probe.core.faults import Faults
from probe.core.launch import WATCHED
from probe.core.process_identity import process_state
from probe.core.run_state.progress import node_folder

PURPOSE = "numbers of a program"
"""First name of the folder of this node with a file for each number."""
WORLDS = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "RANK_SIZE")
"""Variables of launchers with the number of processes."""
_IMPORTED = time.time()


class ProgramNumber:
    """Number that a run holds in a file from its beginning to its end.

    It is the lowest that no run holds or has held since this process began, so that runs of processes that live at the
    same time have different ones, in the order in which they begin. A lock of the folder lets one run choose at a time.

    Args:
        root: output directory.
    """

    def __init__(self, root: Path, groups: Groups, environ: Mapping[str, str], faults: Faults) -> None:
        self.number = 0
        """0 with a launcher and without ``probe run``."""
        self._file: int | None = None
        self._process = f"{os.getpid()} {process_state('self').started}"
        alone = groups.world_size() == 1 and not any(environ.get(name, "1") not in ("", "1") for name in WORLDS)
        if not alone or not environ.get(WATCHED):
            return
        try:
            self.number, self._file = self._taken(folder_of(root, environ))
        except OSError as error:
            faults.note("number of the process", error)

    def release(self) -> None:
        """Leave the number to later processes. A further call does nothing."""
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):  # the lock ends with the file in any case
                self._write(file, time.time())
            os.close(file)

    def _taken(self, folder: Path) -> tuple[int, int]:
        choosing = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(choosing, fcntl.LOCK_EX)
            for number in itertools.count():
                file = os.open(folder / str(number), os.O_RDWR | os.O_CREAT, 0o644)
                if self._take(file):
                    return number, file
                os.close(file)
        finally:
            os.close(choosing)
        raise AssertionError("numbers have no end")

    def _take(self, file: int) -> bool:
        """Lock a file, unless another run holds it or has held it since this process began."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        if not self._is_free(file):
            return False
        self._write(file, None)
        return True

    def _is_free(self, file: int) -> bool:
        text = os.pread(file, 4096, 0)
        if not text:
            return True
        try:
            process, ended = json.loads(text)
        except ValueError:  # cut off when its process was killed
            process, ended = "", None
        if process == self._process:
            return True
        last = os.fstat(file).st_mtime if ended is None else float(ended)
        return last <= process_start()

    def _write(self, file: int, ended: float | None) -> None:
        text = json.dumps([self._process, ended]).encode()
        os.ftruncate(file, 0)
        os.pwrite(file, text, 0)


def folder_of(root: Path, environ: Mapping[str, str]) -> Path:
    """Return the folder of this node for the numbers of a program that writes into ``root``.

    Raises:
        OSError: if it cannot be made.
    """
    return node_folder([PURPOSE, environ[WATCHED], str(root.resolve())], environ)


def process_start() -> float:
    """Return the time at which this process started, in seconds since the epoch."""
    ticks = process_state("self").started
    if ticks < 0 or not hasattr(time, "CLOCK_BOOTTIME"):
        return _IMPORTED
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")
