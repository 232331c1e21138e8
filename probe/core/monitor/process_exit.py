"""The end of the process: exit, exception, SIGTERM. At each of them every monitor of the process flushes.

Python permits only the main thread to set signal handlers. If a monitor ends on another thread, its handler of SIGTERM
stays in place and acts as the previous one would. The previous one is restored at SIGTERM, or when a function of this
module is called on the main thread.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from probe.core.backend.patch import Shared, Undo
from probe.core.monitor.alarms import Cause

Handler = Any
Result = TypeVar("Result")


def while_alive(method: Callable[..., Result]) -> Callable[..., Result | None]:
    """Return a function that calls ``method`` as long as its object is alive, which it does not keep alive: after that
    it returns None."""
    reference = weakref.WeakMethod(method)

    def call(*args: Any) -> Result | None:
        return None if (bound := reference()) is None else bound(*args)

    return call


class Endings:
    """Listener to the end of the process until :meth:`remove`. A forked child is another process and does not react.
    The objects of the two methods are not kept alive.

    Args:
        ended: method that is called when the process ends, with the cause and the exception that has interrupted
            training, if there is one.
        flush: method that is called at a SIGTERM that the process may survive, since it has a handler of its own.
    """

    def __init__(self, ended: Callable[[Cause, BaseException | None], None], flush: Callable[[], object]) -> None:
        self._end, self._flush = while_alive(ended), while_alive(flush)
        self._process, self._over = os.getpid(), False
        atexit.register(self._exit)
        self._leave = _live.listen(self)

    @property
    def catches_sigterm(self) -> bool:
        """True if a handler of SIGTERM is installed; on another thread than the main one none can be."""
        return _live.installed

    def renew(self) -> None:
        """Have the end come before that of whatever has registered a handler of its own since: at the exit, they are
        called in the reverse order."""
        if not self._over and os.getpid() == self._process:
            atexit.unregister(self._exit)
            atexit.register(self._exit)

    def remove(self) -> None:
        """Remove the handlers; a signal handler that was set after ours stays. A further call does nothing."""
        self._over = True
        atexit.unregister(self._exit)
        self._leave()

    def terminated(self, dies: bool) -> None:
        """React to SIGTERM: end if the process ``dies`` from it, else flush."""
        if os.getpid() != self._process:
            return
        if dies:
            self._end("sigterm", None)
        else:
            self._flush()

    def _exit(self) -> None:
        self._over = True
        if os.getpid() == self._process:
            error = getattr(sys, "last_value", None)
            self._end("exit" if error is None else "exception", error)


def restore_handler() -> None:
    """Restore the previous signal handler, if no monitor is left and this is the main thread."""
    _live.settle()


def _in_charge() -> bool:
    """True if signal handlers can be set on this thread."""
    return threading.current_thread() is threading.main_thread()


def _install() -> Iterator[Undo]:
    before = signal.getsignal(signal.SIGTERM)
    if _in_charge() and before is not None:  # None: set by C code, could not be restored
        ours = _handler(before)
        signal.signal(signal.SIGTERM, ours)

        def restore() -> bool:
            if _in_charge() and signal.getsignal(signal.SIGTERM) is ours:
                signal.signal(signal.SIGTERM, before)
            return _in_charge()

        yield restore


def _handler(before: Handler) -> Handler:
    """Return a handler that flushes, then acts as ``before`` would."""

    def terminate(number: int, frame: Any) -> None:
        restore_handler()
        for endings in _live:
            endings.terminated(dies=before == signal.SIG_DFL)
        if callable(before):
            before(number, frame)
        elif before == signal.SIG_DFL:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)

    return terminate


_live: Shared[Endings] = Shared(_install)
