"""Signals that the parent process receives, and the relay of some to the program."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Collection, Iterator
from contextlib import suppress

FROM_TERMINAL = (signal.SIGINT, signal.SIGQUIT)
"""Signals of the terminal's keys, which reach the whole process group."""
RELAYED = (*FROM_TERMINAL, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
WITNESS_SECONDS = 0.25
"""Time within which the witness has noted a signal of the whole process group."""
SAME_SECONDS = 1.0
"""Time within which a signal and the note of the witness are about the same."""


class SignalRelay:
    """Relay of signals to the program. Those that were ignored when the parent began stay so.

    Args:
        program: its process id.
    """

    def __init__(self, program: int) -> None:
        self._program = program
        self._received: list[tuple[int, float]] = []
        self._noted: list[tuple[int, float]] = []
        self._signals = [number for number in RELAYED if signal.getsignal(number) != signal.SIG_IGN]
        self._wakeups, write = os.pipe()
        for descriptor in (self._wakeups, write):
            os.set_blocking(descriptor, False)
        self._witness: Witness | None = None
        with suppress(OSError):  # without one, signals of the terminal are not passed on, all others are
            self._witness = Witness(self._signals)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for number in (*self._signals, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)

    def wait(self, seconds: float) -> None:
        """Wait for a signal, or for ``seconds``; pass on what is due."""
        if self._received:
            seconds = min(seconds, WITNESS_SECONDS / 4)
        reports = self._witness.reports if self._witness is not None else None
        sources = [self._wakeups, *([reports] if reports is not None else [])]
        ready = select.select(sources, [], [], seconds)[0]
        now = time.monotonic()
        if self._wakeups in ready:
            self._received += [(number, now) for number in _numbers(self._wakeups) if number in self._signals]
        if reports in ready:
            self._note(now, reports)
        self._pass_on(now)

    def _note(self, now: float, reports: int) -> None:
        numbers = [*_numbers(reports)]
        if not numbers and self._witness is not None:  # it is gone
            self._witness.close()
            self._witness = None
        self._noted = [note for note in self._noted if now - note[1] < SAME_SECONDS]
        self._noted += [(number, now) for number in numbers]

    def _pass_on(self, now: float) -> None:
        received, self._received = self._received, []
        for number, came in received:
            note = next((note for note in self._noted if note[0] == number and came - note[1] < SAME_SECONDS), None)
            if note is not None:
                self._noted.remove(note)
            elif self._witness is not None and now - came < WITNESS_SECONDS:
                self._received.append((number, came))
            elif self._witness is not None or number not in FROM_TERMINAL:
                with suppress(ProcessLookupError):
                    os.kill(self._program, number)

    def pass_rest(self) -> None:
        """Pass on what has come and does not come from the terminal, in place of a further :meth:`wait`."""
        for number in {*_numbers(self._wakeups), *(number for number, _ in self._received)}:
            if number in self._signals and number not in FROM_TERMINAL:
                with suppress(ProcessLookupError):
                    os.kill(self._program, number)

    def close(self) -> None:
        """End the witness; signals have no effect from now on."""
        if self._witness is not None:
            self._witness.close()
            self._witness = None


def _numbers(descriptor: int) -> Iterator[int]:
    with suppress(BlockingIOError):
        yield from os.read(descriptor, 4096)


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
