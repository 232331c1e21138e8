"""Life of the watcher's process: it leaves the rank that started it, takes the lock of its folder, and watches.

This module imports little: the rank waits until the process has left it.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import signal
import stat
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from probe.core.alerting.channels import AlertSender
    from probe.core.run_state.watcher_process import WatcherSettings

LOCK_SECONDS = 2.0
"""Time for which the lock is tried: a rank that looks whether a watcher lives holds it for a moment."""
CLOSE_SECONDS = 10.0
NICENESS = 10
OLD_SECONDS = 24 * 3600.0
_NAME = re.compile("[0-9a-f]{16}")
_SUFFIXES, _PREFIXES = (".progress", ".stacks"), (".rank", ".watcher", ".hangs")

_log = logging.getLogger("probe.hang")


def main(arguments: Sequence[str], queue: Callable[[WatcherSettings], AlertSender] | None = None) -> int:
    """Watch the folder that is the only argument. Return at once in the process that was started; its child watches.

    Args:
        arguments: the folder.
        queue: maker of the queue of alerts; missing: that of the configuration.
    """
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m probe.services.watcher FOLDER\n")
        return 2
    if os.fork():
        return 0
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with suppress(OSError):
        os.nice(NICENESS)
    folder = Path(arguments[0])
    if (lock := _locked(folder)) < 0:
        return 0
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.raiseExceptions = False
    with suppress(OSError):
        sweep(folder.parent)
    _watch(folder, queue or _queue, lock)
    if not _is_replaced(folder, lock):
        with suppress(OSError):
            _clear(folder)
    os.close(lock)
    return 0


def _is_replaced(folder: Path, lock: int) -> bool:
    """Return whether the folder has the lock of another watcher: somebody removed this one's, and a rank made it
    anew."""
    from probe.core.run_state.watcher_process import LOCK

    try:
        return os.fstat(lock).st_ino != (folder / LOCK).stat().st_ino
    except OSError:  # removed, and not made anew
        return False


def _watch(folder: Path, queue: Callable[[WatcherSettings], AlertSender], lock: int) -> None:
    from probe.core.run_state.watcher_process import WatcherSettings
    from probe.services.watcher.node import NodeWatcher

    settings = WatcherSettings.read(folder)
    alerts = queue(settings)
    signal.signal(signal.SIGTERM, _leave)
    try:
        NodeWatcher(folder, settings, alerts, lambda: _is_replaced(folder, lock)).run()
    finally:
        alerts.close(CLOSE_SECONDS)


def _leave(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


def _queue(settings: WatcherSettings) -> AlertSender:
    """Queue of alerts that the configuration describes."""
    from probe.core.alerting.alerts import Alerts
    from probe.core.config.schema import AlertSettings
    from probe.core.faults import Faults

    alerts = Alerts(
        AlertSettings.model_validate(dict(settings.alert)),
        job=settings.job,
        rank=-1,
        directory=Path(settings.output),
        faults=Faults(),
    )
    alerts.start()
    return alerts


def _locked(folder: Path) -> int:
    """Take the lock of ``folder`` and write the process id into it; -1 if another watcher has it."""
    from probe.core.run_state.watcher_process import LOCK

    end = time.monotonic() + LOCK_SECONDS
    while True:
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(lock).st_ino == os.stat(folder / LOCK).st_ino:  # noqa: PTH116 - as its neighbour
                os.ftruncate(lock, 0)
                os.pwrite(lock, str(os.getpid()).encode(), 0)
                return lock
        os.close(lock)
        if time.monotonic() > end:
            return -1
        time.sleep(0.05)


def sweep(above: Path) -> None:
    """Remove folders that jobs left which were killed as a whole: a day old, without a watcher and without a living
    rank."""
    for folder in above.iterdir():
        if _NAME.fullmatch(folder.name) and _abandoned(folder):
            for path in folder.iterdir():
                if path.is_file() and (path.suffix in _SUFFIXES or path.name.startswith(_PREFIXES)):
                    path.unlink()
            _clear(folder)


def _abandoned(folder: Path) -> bool:
    from probe.core.run_state.watcher_process import watcher_pid

    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or time.time() - status.st_mtime < OLD_SECONDS:
        return False
    pids = [path.stem.rpartition("-")[2] for path in folder.glob("rank*-*.progress")]
    return not watcher_pid(folder) and not any(Path("/proc", pid).exists() for pid in pids)


def _clear(folder: Path) -> None:
    """Remove the files of the watcher, and the folder if nothing else is in it."""
    from probe.core.run_state.watcher_process import LOCK, LOG, SETTINGS
    from probe.services.watcher.episode import FILE

    for name in (SETTINGS, LOG, FILE, LOCK):
        with suppress(OSError):
            (folder / name).unlink()
    folder.rmdir()
