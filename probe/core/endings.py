"""How a run may end: exit, exception, SIGTERM. Each gives every monitor of the process its chance to flush."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

Handler = Any
_live: list[Endings] = []
_installed: tuple[Handler, Handler] | None = None
"""Our handler of SIGTERM while it is in place, and the one before it."""


class Endings:
    """Watches for the end of the process until :meth:`forget`. A forked child is another process and does not react.

    Args:
        ended: called when the process ends; told whether training was interrupted by an exception.
        flush: called at a SIGTERM that the process may survive, having a handler of its own.
    """

    def __init__(self, ended: Callable[[bool], None], flush: Callable[[], object]) -> None:
        self._ended, self._flush, self._process = ended, flush, os.getpid()
        atexit.register(self._exit)
        _live.append(self)
        _install()

    def forget(self) -> None:
        """Takes the handlers away; a signal handler that came after ours stays. Calling it again is harmless."""
        atexit.unregister(self._exit)
        if self in _live:
            _live.remove(self)
        if not _live:
            _restore()

    def terminated(self, dies: bool) -> None:
        """SIGTERM has come."""
        if os.getpid() != self._process:
            return
        if dies:
            self._ended(False)
        else:
            self._flush()

    def _exit(self) -> None:
        if os.getpid() == self._process:
            self._ended(getattr(sys, "last_value", None) is not None)


def _in_charge() -> bool:
    """Whether signal handlers can be set here."""
    return threading.current_thread() is threading.main_thread()


def _install() -> None:
    global _installed  # noqa: PLW0603 - the handler is the process's
    before = signal.getsignal(signal.SIGTERM)
    if _installed is None and _in_charge() and before is not None:  # None: set by C code, could not be put back
        _installed = (_handler(before), before)
        signal.signal(signal.SIGTERM, _installed[0])


def _restore() -> None:
    global _installed  # noqa: PLW0603
    if _installed is None or not _in_charge():
        return
    ours, before = _installed
    if signal.getsignal(signal.SIGTERM) is ours:
        signal.signal(signal.SIGTERM, before)
    _installed = None


def _handler(before: Handler) -> Handler:
    """Flushes, then does what would have been done without us."""

    def terminate(number: int, frame: Any) -> None:
        for endings in list(_live):
            endings.terminated(dies=before == signal.SIG_DFL)
        if callable(before):
            before(number, frame)
        elif before == signal.SIG_DFL:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)

    return terminate
