"""Number of a run among those of one program under ``probe run``: the processes that such a program starts without a
launcher all have rank 0, and so have two models of a process."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

from probe.core.backend.protocols import Groups, Remove
from probe.core.faults import Faults
from probe.core.launch import WATCHED
from probe.core.process_identity import process_state
from probe.core.run_state.progress import node_folder

PURPOSE = "numbers of a program"
"""First name of the folder of this node with a file for each number."""
WORLDS = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "RANK_SIZE")
"""Variables of launchers with the number of processes."""
_IMPORTED = time.time()


def claim_number(root: Path, groups: Groups, environ: Mapping[str, str], faults: Faults) -> tuple[int, Remove]:
    """Return the number of a run, and the function that leaves it to later processes; 0 with a launcher and without
    ``probe run``. The run holds its number in a file.

    It is the lowest that no run holds or has held since this process began, so that runs of processes that live at the
    same time have different ones, in the order in which they begin. A lock of the folder lets one run choose at a time.

    Args:
        root: output directory.
    """
    release, process = ExitStack(), f"{os.getpid()} {process_state('self').started}"
    alone = groups.world_size() == 1 and not any(environ.get(name, "1") not in ("", "1") for name in WORLDS)
    if not alone or not environ.get(WATCHED):
        return 0, release.close
    try:
        number, file = _claimed(folder_of(root, environ), process)
    except OSError as error:
        faults.note("number of the process", error)
        return 0, release.close
    release.callback(_release, file, process)
    return number, release.close


def _claimed(folder: Path, process: str) -> tuple[int, int]:
    """Return a number that ``process`` holds from now on, and the descriptor of its locked file."""
    choosing = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(choosing, fcntl.LOCK_EX)
        for number in itertools.count():
            file = os.open(folder / str(number), os.O_RDWR | os.O_CREAT, 0o644)
            if _lock(file, process):
                return number, file
            os.close(file)
    finally:
        os.close(choosing)
    raise AssertionError("numbers have no end")


def _lock(file: int, process: str) -> bool:
    """Lock a file, unless another run holds it or has held it since this process began."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    if not _is_free(file, process):
        return False
    _write(file, process, None)
    return True


def _is_free(file: int, process: str) -> bool:
    text = os.pread(file, 4096, 0)
    if not text:
        return True
    try:
        owner, ended = json.loads(text)
    except ValueError:  # cut off when its process was killed
        owner, ended = "", None
    if owner == process:
        return True
    last = os.fstat(file).st_mtime if ended is None else float(ended)
    return last <= process_start()


def _write(file: int, process: str, ended: float | None) -> None:
    text = json.dumps([process, ended]).encode()
    os.ftruncate(file, 0)
    os.pwrite(file, text, 0)


def _release(file: int, process: str) -> None:
    with suppress(OSError):  # the lock ends with the file in any case
        _write(file, process, time.time())
    os.close(file)


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
