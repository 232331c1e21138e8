"""Open matters: each is sent once, by one rank, until it is resolved or an hour has passed. A lasting one is open until
it is resolved, and its alert is there for receivers that get it again.

Ranks agree without talking to each other: the first to create the matter's file in the folder that they share sends it,
and the others count it. Files that were created before this rank began belong to an earlier run.
"""

from __future__ import annotations

import hashlib
import os
import socket
import time
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from probe.core.faults import Faults
from probe.core.launch import is_rank, launch_names
from probe.core.messages import plural
from probe.core.records import Alert

OPEN_SECONDS = 3600.0
"""Time after which an open matter is sent again."""
CLOCK_SECONDS = 0.1
"""Most that the clock of file systems may be behind."""
UNNAMED = "ranks of a launch without a name"
MOST = 2000
"""Most matters that are kept in memory; of more, the oldest are forgotten."""


def run_name(environ: Mapping[str, str]) -> str:
    """Return a name that all ranks of a run share, and no other run at the same time; of a process without a launcher
    one of its own. Ranks whose launch has no name share one with all such ranks in their folder."""
    names = [f"{name}={value}" for name, value in launch_names(environ, restarts=True).items()]
    return "\n".join(names) or (UNNAMED if is_rank(environ) else os.urandom(16).hex())


class _Matter:
    def __init__(self, alert: Alert, since: float, is_own: bool) -> None:
        self.alert, self.since, self.own = alert if alert.lasting else alert._replace(text=""), since, is_own
        self.repeats = 0


class Matters:
    """Memory of the open matters of a run, as one rank knows them.

    Args:
        folder: folder that ranks share; None if there is none: then every rank sends its own.
        run: name of the run, the same on all ranks.
    """

    def __init__(self, folder: Path | None, run: str, faults: Faults) -> None:
        self._folder, self._run, self._faults = folder, run, faults
        self._began = time.time()
        self._open: OrderedDict[str, _Matter] = OrderedDict()

    def is_open(self, key: str) -> bool:
        """Return whether the matter is known here and open, and count the repetition if so."""
        matter = self._open.get(key)
        if matter is None or (not matter.alert.lasting and time.monotonic() - matter.since >= OPEN_SECONDS):
            return False
        matter.repeats += 1
        return True

    def open(self, alert: Alert) -> bool:
        """Open a matter; return whether this rank sends it."""
        return self._keep(alert, self._claimed(alert.key))

    def take_over(self, alert: Alert) -> None:
        """Open a matter whose alert an earlier process of this rank has sent, unless another rank has sent it."""
        if alert.key not in self._open:
            self._keep(alert, self._sent_here(alert))

    @property
    def lasts(self) -> bool:
        """True if a matter is open that lasts."""
        return any(matter.alert.lasting for matter in self._open.values())

    def lasting(self) -> list[Alert]:
        """Return the alerts of lasting matters that this rank has sent; other ranks are shown that they are open."""
        matters = [matter for matter in self._open.values() if matter.own and matter.alert.lasting]
        for matter in matters if self._folder is not None else ():
            with suppress(OSError):
                for path in self._files(matter.alert.key)[-1:]:
                    os.utime(path)
        return [matter.alert for matter in matters]

    def _keep(self, alert: Alert, is_own: bool) -> bool:
        self._open.pop(alert.key, None)
        self._open[alert.key] = _Matter(alert, time.monotonic(), is_own)
        while len(self._open) > MOST:
            self._open.popitem(last=False)
        return is_own

    def resolve(self, key: str, text: str) -> Alert | None:
        """Close a matter; return its notice if this rank has sent it."""
        matter = self._open.pop(key, None)
        if matter is None:
            return None
        if self._folder is not None and matter.own:
            with suppress(OSError):
                for path in self._files(key):
                    path.rename(path.with_suffix(".resolved"))
        if not matter.own:
            return None
        number = matter.repeats
        repeats = f"{number} {plural(number, 'repetition')} not sent" if number else ""
        text = "\n".join(filter(None, (text, repeats)))
        return matter.alert._replace(text=text, time=time.time(), resolved=True, repeated=False)

    def _claimed(self, key: str) -> bool:
        """Return whether this rank is the first with the matter; errors count as yes: rather twice than never."""
        try:
            return self._folder is None or self._created(key)
        except Exception as error:  # noqa: BLE001 - of a disk: it is counted
            self._faults.note("alerts: first of the ranks", error)
            return True

    def _created(self, key: str) -> bool:
        assert self._folder is not None
        self._folder.mkdir(parents=True, exist_ok=True)
        files = self._files(key)
        if files and _is_open(files[-1], self._began):
            return False
        path = self._folder / f"{self._stem(key)}.{len(files) + 1}.open"
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            return False
        with suppress(OSError):  # for the next process of this rank
            os.write(descriptor, socket.gethostname().encode("utf-8", "replace"))
        os.close(descriptor)
        return True

    def _sent_here(self, alert: Alert) -> bool:
        """Return whether an earlier process on this host has sent an alert, as far as the folder shows."""
        if self._folder is None:
            return True
        with suppress(OSError):
            for path in self._files(alert.key)[-1:]:
                return path.read_text("utf-8", errors="replace") == socket.gethostname()
        return True

    def _stem(self, key: str) -> str:
        return "matter-" + hashlib.sha256(f"{self._run}\0{key}".encode("utf-8", "replace")).hexdigest()[:32]

    def _files(self, key: str) -> list[Path]:
        assert self._folder is not None
        files = [path for path in self._folder.glob(f"{self._stem(key)}.*") if path.suffixes[0][1:].isdecimal()]
        return sorted(files, key=lambda path: int(path.suffixes[0][1:]))


def _is_open(path: Path, began: float) -> bool:
    if path.suffix != ".open":
        return False
    try:
        created = path.stat().st_mtime
    except FileNotFoundError:  # resolved at this moment
        return False
    return created > began - CLOCK_SECONDS and time.time() - created < OPEN_SECONDS


def forget_old(folder: Path) -> None:
    """Remove the files of matters that nobody needs any more."""
    with suppress(OSError):
        for path in folder.glob("matter-*"):
            if time.time() - path.stat().st_mtime > 2 * OPEN_SECONDS:
                path.unlink(missing_ok=True)
