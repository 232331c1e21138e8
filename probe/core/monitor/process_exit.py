"""The end of the process: exit, exception, SIGTERM. At each of them every monitor of the process flushes.

Python lets the main thread alone set signal handlers. A monitor that ends on another thread leaves the handler of
SIGTERM in place: it then acts as the one before it would, which is put back when SIGTERM comes or when anything here is
called on the main thread.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

Handler = Any
_live: list[Endings] = []
_installed: tuple[Handler, Handler] | None = None
"""Our handler of SIGTERM while it is in place, and the one before it."""


class Endings:
    """Watches for the end of the process until :meth:`forget`. A forked child is another process and does not react.

    Args:
        ended: method that is called when the process ends, with whether training was interrupted by an exception.
        flush: method that is called at a SIGTERM that the process may survive, having a handler of its own. The object
            of neither is kept alive.
    """

    def __init__(self, ended: Callable[[bool], None], flush: Callable[[], object]) -> None:
        self._ended_ref, self._flush_ref = weakref.WeakMethod(ended), weakref.WeakMethod(flush)
        self._process = os.getpid()
        atexit.register(self._exit)
        _live.append(self)
        _install()

    def forget(self) -> None:
        """Removes the handlers; a signal handler that was set after ours stays. Calling it again is harmless."""
        atexit.unregister(self._exit)
        if self in _live:
            _live.remove(self)
        put_back()

    def terminated(self, dies: bool) -> None:
        """SIGTERM has come."""
        if os.getpid() != self._process:
            return
        if dies:
            self._end(False)
        elif (flush := self._flush_ref()) is not None:
            flush()

    def _exit(self) -> None:
        if os.getpid() == self._process:
            self._end(getattr(sys, "last_value", None) is not None)

    def _end(self, interrupted: bool) -> None:
        if (ended := self._ended_ref()) is not None:
            ended(interrupted)


def put_back() -> None:
    """Restores the signal handler that was there, if no monitor is left and this is the main thread."""
    if not _live:
        _restore()


def _in_charge() -> bool:
    """Whether signal handlers can be set here."""
    return threading.current_thread() is threading.main_thread()


def _install() -> None:
    global _installed  # noqa: PLW0603 - the handler is the process's
    if len(_live) == 1:
        _restore()  # one that could not be put back when the last monitor ended
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
    """Returns a handler that flushes, then acts as ``before`` would."""

    def terminate(number: int, frame: Any) -> None:
        if not _live:
            _restore()
        for endings in list(_live):
            endings.terminated(dies=before == signal.SIG_DFL)
        if callable(before):
            before(number, frame)
        elif before == signal.SIG_DFL:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)

    return terminate
