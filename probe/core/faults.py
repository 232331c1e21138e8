"""Faults inside probe itself: counted, logged once a window, never raised into training."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from contextlib import AbstractContextManager

from probe.core.errors import ADVICE, reason_of
from probe.core.language import message

WINDOW_SECONDS = 60.0
"""Time in which the same fault is logged at most once."""
MOST_LOGGED = 20
"""Most different faults that are logged in this time; all are counted."""
LOG = "log: faults that could not be logged"
"""Kind that is counted if a handler of logging raises."""
SINK = "sink "
"""Beginning of the places of what writes files."""
DEEP = "hooks: RecursionError"
"""Kind that is counted, not logged: at the recursion limit there is no room for logging."""

_log = logging.getLogger("probe")


class Misfit(Exception):  # noqa: N818 - nothing has failed
    """Mismatch between an expected value and the one found."""


class Faults:
    """Counts of faults, by place and kind.

    Args:
        consequence: what the log says of a fault.
    """

    def __init__(self, consequence: str = message("training goes on without it")) -> None:
        self._consequence = consequence
        self._counts: Counter[str] = Counter()
        self._logged: dict[str, float] = {}
        self._lock, self._process = threading.RLock(), os.getpid()
        self.uncounted = 0
        """Number of faults at the end of the stack, where not even :meth:`note` could be called."""

    def note(self, where: str, error: BaseException) -> None:
        """Count ``error``; log the first of its kind in a window, with its traceback if it has one and is neither a
        misfit nor the system's, which says by itself what is wrong."""
        kind = f"{where}: {type(error).__name__}"
        with self._locked():
            self._counts[kind] += 1
            now, last = time.monotonic(), self._logged.get(kind)
            if last is not None and now - last < WINDOW_SECONDS:
                return
            self._logged = {key: at for key, at in self._logged.items() if now - at < WINDOW_SECONDS}
            if len(self._logged) > MOST_LOGGED:
                return
            self._logged[kind] = now
            most = len(self._logged) > MOST_LOGGED
        try:
            if most:
                _log.warning("further faults are counted, not logged: see monitor.faults and manifest.json")
                return
            text, number, plain = f"{kind}: {reason_of(error)}"[:300], self._counts[kind], isinstance(error, Misfit)
            plain = plain or (isinstance(error, OSError) and error.errno in ADVICE)
            trace = None if error.__traceback__ is None or plain else error
            seen = message(" (seen {number} times)", number=number) if number > 1 else ""
            _log.warning("%s: %s%s", self._consequence, text, seen, exc_info=trace)
        except Exception:  # noqa: BLE001 - it is counted; an error without a text, or a log that fails, stops nothing
            self.lost(LOG, 1)

    def lost(self, where: str, rows: int) -> None:
        """Count rows that were dropped by choice or at shutdown."""
        with self._locked():
            self._counts[where] += rows

    @property
    def counts(self) -> dict[str, int]:
        """Counts so far, by place and kind."""
        with self._locked():
            return dict(self._counts) | ({DEEP: self.uncounted} if self.uncounted else {})

    def _locked(self) -> AbstractContextManager[object]:
        """Lock, reentrant because a signal handler may run while it is held. A forked child makes its own, since no
        thread there will release the one that the delivery thread holds."""
        if os.getpid() != self._process:
            self._lock, self._process = threading.RLock(), os.getpid()
        return self._lock
