"""Witness of signals: a process beside the parent that notes which of them reach the whole process group.

The program gets such a signal itself (Ctrl-C, ``timeout``, ``torchrun``, a service manager); passed on by the parent it
would come twice, and the second SIGTERM ends a program that is about to save a checkpoint. A signal that reaches the
parent alone is passed on.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Collection
from contextlib import suppress


class Witness:
    """The process, which ends with the parent, however that ends.

    Args:
        signals: those that it notes; blocked in this process while this is made.

    Raises:
        OSError: if there can be no further process.
    """

    def __init__(self, signals: Collection[int]) -> None:
        self.reports, write = os.pipe()
        """Descriptor from which the number of each signal that came is read, a byte each."""
        lifeline, self._lifeline = os.pipe()
        try:
            pid = os.fork()
        except OSError:
            self.close()
            raise
        finally:
            if "pid" not in locals() or pid:
                os.close(write)
                os.close(lifeline)
        if not pid:
            _note(signals, lifeline, write)

    def close(self) -> None:
        """End the process."""
        for descriptor in (self.reports, self._lifeline):
            with suppress(OSError):
                os.close(descriptor)


def _note(signals: Collection[int], lifeline: int, write: int) -> None:
    """Write the number of each signal that comes until the parent is gone; in the new process."""
    try:
        spared = sorted((lifeline, write))
        for low, high in zip((0, *(descriptor + 1 for descriptor in spared)), (*spared, 1024), strict=True):
            os.closerange(low, high)  # a reader of the program's output must not wait for this process
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for number in signals:
            signal.signal(number, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
        while os.read(lifeline, 1):
            pass
    finally:
        os._exit(0)
