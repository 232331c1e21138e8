"""How a run may end: exit, exception, SIGTERM. Each gives the monitor its chance to flush."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any


class Endings:
    """Calls ``ended(partial)`` once when the process ends, unless :meth:`forget` came first.

    ``partial`` says that training was interrupted inside a step. Only the process that installed it reacts; a forked
    child does not.
    """

    def __init__(self, ended: Callable[[bool], None]) -> None:
        self._ended, self._process = ended, os.getpid()
        self._previous: Any = None
        atexit.register(self._exit)
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGTERM, self._terminate)
            self._installed = signal.getsignal(signal.SIGTERM)

    def forget(self) -> None:
        """Takes the handlers away; a signal handler that came after ours stays."""
        atexit.unregister(self._exit)
        if self._previous is not None and signal.getsignal(signal.SIGTERM) is self._installed:
            signal.signal(signal.SIGTERM, self._previous)
            self._previous = None

    def _exit(self) -> None:
        if os.getpid() == self._process:
            self._ended(getattr(sys, "last_value", None) is not None)

    def _terminate(self, number: int, frame: Any) -> None:
        """Flushes, then does what would have been done without us."""
        previous = self._previous
        if os.getpid() == self._process:
            self._ended(False)
        if callable(previous):
            previous(number, frame)
        elif previous != signal.SIG_IGN:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
