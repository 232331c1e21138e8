"""SIGUSR1 as a switch, where a configuration asks for it."""

from __future__ import annotations

import logging
import os
import signal
import threading
from types import FrameType
from typing import Any

SIGNAL = signal.SIGUSR1

_log = logging.getLogger("probe.control")


class Toggle:
    """Remembers that the signal has come, until it is asked. A handler that was there before is called as well."""

    def __init__(self) -> None:
        self._come = self._forgotten = False
        self._before: Any = signal.getsignal(SIGNAL)
        self._ours = threading.current_thread() is threading.main_thread() and self._before is not None
        if self._ours:
            signal.signal(SIGNAL, self._handle)
        else:
            _log.warning("SIGUSR1 does not switch monitoring: its handler cannot be set here")

    def taken(self) -> bool:
        """Whether the signal has come since this was last asked."""
        come, self._come = self._come, False
        return come

    def forget(self) -> None:
        """Puts back the handler that was there, unless another has come since. Python lets the main thread alone do
        that: called on another one, it leaves a handler that does so when the signal comes, and what would have been
        done then."""
        self._forgotten = True
        main = threading.current_thread() is threading.main_thread()
        if self._ours and main and signal.getsignal(SIGNAL) == self._handle:
            signal.signal(SIGNAL, self._before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._come = True
        if self._forgotten:
            self.forget()
        if callable(self._before):
            self._before(number, frame)
        elif self._forgotten and self._before == signal.SIG_DFL:
            os.kill(os.getpid(), number)
