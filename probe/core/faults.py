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

_log = logging.getLogger("probe")


class Faults:
    """Counts of what failed, by place and kind."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._logged: dict[str, float] = {}
        self._lock, self._process = threading.RLock(), os.getpid()

    def note(self, where: str, error: BaseException) -> None:
        """Counts ``error``; the first of its kind in a window is logged with its traceback."""
        what = f"{where}: {type(error).__name__}: {error}"[:300]
        kind = f"{where}: {type(error).__name__}"
        with self._locked():
            self._counts[kind] += 1
            now, last = time.monotonic(), self._logged.get(kind)
            if last is not None and now - last < WINDOW_SECONDS:
                return
            self._logged[kind] = now
        _log.warning("training goes on without it: %s (seen %d times)", what, self._counts[kind], exc_info=error)

    def lost(self, where: str, rows: int) -> None:
        """Counts what was dropped by choice or at shutdown."""
        with self._locked():
            self._counts[where] += rows

    @property
    def counts(self) -> dict[str, int]:
        """Everything counted so far."""
        with self._locked():
            return dict(self._counts)

    def _locked(self) -> AbstractContextManager[object]:
        """Reentrant, since a signal handler may come while the lock is held; a forked child makes its own, since nobody
        there will release the one that the delivery thread holds."""
        if os.getpid() != self._process:
            self._lock, self._process = threading.RLock(), os.getpid()
        return self._lock
