"""Process of the watcher of a node, started by a rank and started again if it dies."""

from __future__ import annotations

import ctypes
import fcntl
import json
import logging
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probe.core.child_process import python_module
from probe.core.faults import Faults
from probe.core.run_state.progress import renew_progress
from probe.core.storage.files import replace_text

if TYPE_CHECKING:  # the watcher reads this module before it needs the configuration
    from probe.core.config.schema import Settings

MODULE = "probe.services.watcher"
SETTINGS, LOCK, LOG = "watcher.json", "watcher.lock", "watcher.log"
SECONDS = 5.0
"""Shortest time between two looks at the watcher."""
LATER_SECONDS = 15.0
"""Time that ranks other than the first of the node leave it to start the watcher."""
MOST_SECONDS = 600.0
"""Longest time between two attempts to start it."""
_PTRACE_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")
_SET_PTRACER = 0x59616D61

_log = logging.getLogger("probe.hang")


@dataclass(frozen=True)
class WatcherSettings:
    """Configuration of the watcher, written by a rank: no secret is in it but those that the configuration itself has,
    and only this user can read it."""

    job: str
    output: str
    """Output directory of the run, absolute."""
    alert: Mapping[str, Any] = field(default_factory=dict)
    """Section ``alert`` of the configuration as JSON."""
    on_hang: str = "alert"
    floor_seconds: float = 60.0
    startup_seconds: float = 1800.0
    grace_seconds: float = 10.0
    """Time between SIGTERM and SIGKILL with ``on_hang: end``."""
    poll_seconds: float = 0.5
    linger_seconds: float = 15.0
    """Time after the last rank of the node has ended, in which another may begin."""

    @classmethod
    def of(cls, settings: Settings, job: str, output: Path) -> WatcherSettings:
        """Choose the settings of a watcher from a configuration."""
        hang = settings.run.hang
        return cls(
            job=job,
            output=str(output.resolve()),
            # not in JSON mode, in which addresses are cut
            alert=json.loads(json.dumps(settings.alert.model_dump(exclude={"rules"}))),
            on_hang=hang.on_hang,
            floor_seconds=hang.floor_seconds,
            startup_seconds=hang.startup_seconds,
            grace_seconds=settings.alert.grace_seconds,
        )

    def write(self, folder: Path) -> None:
        """Write the file of the watcher in one move."""
        replace_text(folder / SETTINGS, json.dumps(asdict(self)), private=True)

    @classmethod
    def read(cls, folder: Path) -> WatcherSettings:
        """Read the file of the watcher."""
        return cls(**json.loads((folder / SETTINGS).read_text("utf-8")))


class WatcherProcess:
    """Watcher of this node as a rank sees it. :meth:`look` is for a thread that is not the training thread.

    Args:
        folder: folder of the ranks of this node.
        settings: configuration of the watcher.
        first: whether this is the first rank of the node, which starts the watcher; others start it again.
        faults: counts of failures to start it.
        command: program instead of the module ``probe.services.watcher``.
    """

    def __init__(
        self, folder: Path, settings: WatcherSettings, first: bool, faults: Faults, command: Sequence[str] = ()
    ) -> None:
        self._folder, self._settings, self._faults = folder, settings, faults
        self._command = [*(command or python_module(MODULE)), str(folder)]
        self._next = time.monotonic() + (0 if first else LATER_SECONDS)
        self._attempts, self._tracer, self._owner = 0, 0, os.getpid()
        self._started: subprocess.Popen[bytes] | None = None

    def look(self) -> None:
        """Start the watcher if none lives, and make the files of this rank again if they were removed. Most calls only
        compare two times; none raises."""
        if time.monotonic() < self._next or os.getpid() != self._owner:
            return
        self._next = time.monotonic() + SECONDS
        try:
            renew_progress(self._folder)
            if pid := watcher_pid(self._folder):
                self._attempts = 0
                self._allow_tracing(pid)
            else:
                self._start()
        except Exception as error:  # noqa: BLE001 - training goes on without a watcher
            self._faults.note("hang: watcher", error)

    def _start(self) -> None:
        if self._started is not None and self._started.poll() is None:
            return  # on its way
        if self._attempts:
            self._faults.lost("hang: watcher started again", 1)
            _log.warning("the watcher of this node has ended: started again; %s", _last_line(self._folder / LOG))
        self._attempts += 1
        self._next = time.monotonic() + min(SECONDS * 2 ** (self._attempts - 1), MOST_SECONDS)
        self._settings.write(self._folder)
        with (self._folder / LOG).open("wb") as log:
            # The program leaves this process at once: no child of ours remains that the program could wait for or end.
            self._started = subprocess.Popen(  # noqa: S603 - our own module
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                cwd=self._folder,
                env=_environment(),
                start_new_session=True,
            )
        with suppress(subprocess.TimeoutExpired):
            self._started.wait(10)

    def _allow_tracing(self, pid: int) -> None:
        """Let the watcher and its children read this process where Linux allows it to parents only."""
        if pid > 0 and pid != self._tracer:
            self._tracer = pid
            with suppress(OSError, ValueError):
                if int(_PTRACE_SCOPE.read_text("ascii")) == 1:
                    ctypes.CDLL(None).prctl(_SET_PTRACER, ctypes.c_ulong(pid), 0, 0, 0)


def ensure_watcher(
    folder: Path, settings: WatcherSettings, first: bool, faults: Faults, command: Sequence[str] = ()
) -> WatcherProcess:
    """Start the watcher of this node if this is its first rank and none lives, and return the object whose
    :meth:`WatcherProcess.look` is to be called every few seconds."""
    process = WatcherProcess(folder, settings, first, faults, command)
    process.look()
    return process


def watcher_pid(folder: Path) -> int:
    """Return the id of the watcher that holds the lock of ``folder``; 0 if none lives."""
    try:
        descriptor = os.open(folder / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return 0
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.pread(descriptor, 20, 0)
        return int(text) if text.strip().isdigit() else -1
    finally:
        os.close(descriptor)
    return 0


def _environment() -> dict[str, str]:
    """Return the environment with one thread for NumPy."""
    return {**os.environ, **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")}


def _last_line(path: Path) -> str:
    with suppress(OSError):
        lines = path.read_text("utf-8", errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "it wrote nothing")
    return "its log is missing"
