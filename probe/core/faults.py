"""What went wrong inside probe itself: counted, logged once a window, never raised into training."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from contextlib import AbstractContextManager

WINDOW_SECONDS = 60.0
"""The same fault is logged at most once in this time."""
MOST_LOGGED = 20
"""Different faults that are logged in this time; all are counted."""
LOG = "log: faults that could not be logged"
"""Counted where a handler of logging has raised."""
DEEP = "hooks: RecursionError"
"""Counted, not logged: at the recursion limit there is no room for logging."""

_log = logging.getLogger("probe")


class Faults:
    """Counts of what failed, by place and kind."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._logged: dict[str, float] = {}
        self._lock, self._process = threading.RLock(), os.getpid()
        self.uncounted = 0
        """Failures where not even :meth:`note` could be called, at the end of the stack: a number alone can be changed
        there."""

    def note(self, where: str, error: BaseException) -> None:
        """Counts ``error``; the first of its kind in a window is logged with its traceback."""
        kind = f"{where}: {type(error).__name__}"
        with self._locked():
            self._counts[kind] += 1
            now, last = time.monotonic(), self._logged.get(kind)
            if last is not None and now - last < WINDOW_SECONDS:
                return
            self._logged = {each: at for each, at in self._logged.items() if now - at < WINDOW_SECONDS}
            if len(self._logged) > MOST_LOGGED:
                return
            self._logged[kind] = now
            most = len(self._logged) > MOST_LOGGED
        try:
            if most:
                _log.warning("further faults are counted, not logged: see monitor.faults and manifest.json")
                return
            what, number = f"{kind}: {error}"[:300], self._counts[kind]
            seen = f" (seen {number} times)" if number > 1 else ""
            _log.warning("training goes on without it: %s%s", what, seen, exc_info=error)
        except Exception:  # noqa: BLE001 - it is counted; an error without a text, or a log that fails, stops nothing
            self.lost(LOG, 1)

    def lost(self, where: str, rows: int) -> None:
        """Counts what was dropped by choice or at shutdown."""
        with self._locked():
            self._counts[where] += rows

    @property
    def counts(self) -> dict[str, int]:
        """Everything counted so far."""
        with self._locked():
            return dict(self._counts) | ({DEEP: self.uncounted} if self.uncounted else {})

    def _locked(self) -> AbstractContextManager[object]:
        """Reentrant, since a signal handler may come while the lock is held; a forked child makes its own, since nobody
        there will release the one that the delivery thread holds."""
        if os.getpid() != self._process:
            self._lock, self._process = threading.RLock(), os.getpid()
        return self._lock
