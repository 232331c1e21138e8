"""The program, as a child of this process: with its streams, its terminal and its process group."""

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from probe.core.process_identity import process_state

LOOK_SECONDS = 1.0
"""Time between two looks at the board."""
END_SECONDS = 5.0
"""Most time from the end of the program to the report about it."""
LATE_SECONDS = 0.3
"""Most time for a line in place of the report."""
STOPS = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
"""Signals by which a terminal stops a job."""
STOP_SECONDS = 0.05
RESTORED = (signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that Python ignores, and programs do not."""
_SET_DUMPABLE = 4


class Program:
    """The program.

    Args:
        inherited: descriptors that this process got from the one before, and that only the program needs.

    Raises:
        OSError: if it cannot be started.
        ValueError: if this process could not learn how it ends.
    """

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], inherited: Sequence[int] = ()) -> None:
        if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
            raise ValueError("children of this process leave no exit code")
        self._inherited = inherited
        self._relay: SignalRelay | None = None
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, RELAYED)
        try:
            self.pid = os.posix_spawnp(command[0], [*command], environ, setsigmask=self._mask, setsigdef=RESTORED)
        except BaseException:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
            raise

    def wait(self, look: Callable[[], object]) -> int:
        """Wait for the end of the program; return its status, as ``waitpid`` does. Call ``look`` once a second, which
        must not raise."""
        try:
            return self._accompany(look)
        except Exception:  # noqa: BLE001 - no memory, no descriptors: the program goes on, and so does the wait for it
            return self._wait_alone()

    def _wait_alone(self) -> int:
        """Wait without a look at anything else; pass on signals that do not come from the terminal."""
        signal.pthread_sigmask(signal.SIG_BLOCK, RELAYED)
        for number in RELAYED:
            if signal.getsignal(number) != signal.SIG_IGN:
                passes = number not in FROM_TERMINAL
                signal.signal(number, (lambda received, _: os.kill(self.pid, received)) if passes else lambda *_: None)
        if self._relay is not None:
            self._relay.pass_rest()
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        while (status := self._status(0)) is None:
            pass
        return status

    def _accompany(self, look: Callable[[], object]) -> int:
        _let_go(self._inherited)
        self._relay = relay = SignalRelay(self.pid)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        due = time.monotonic() + LOOK_SECONDS
        while (status := self._status(os.WNOHANG | os.WUNTRACED)) is None:
            relay.wait(max(0.0, due - time.monotonic()))
            if time.monotonic() >= due:
                look()
                due = time.monotonic() + LOOK_SECONDS
        relay.close()
        return status

    def _status(self, options: int) -> int | None:
        """Return the status of the program if it has ended; reap other processes, of which this one may have become the
        parent."""
        while True:
            pid, status = os.waitpid(-1, options)
            if pid == self.pid and os.WIFSTOPPED(status):
                self._stop_with(os.WSTOPSIG(status))
            elif pid == self.pid:
                return status
            elif not pid:
                return None

    def _stop_with(self, number: int) -> None:
        """Stop as the program has stopped, so that the shell notices; go on with it."""
        time.sleep(STOP_SECONDS)  # a signal to the whole group that continues it reaches both one after the other
        if number in STOPS and process_state(self.pid).state == "T":
            os.kill(os.getpid(), number)
            os.kill(self.pid, signal.SIGCONT)


def end_as(status: int) -> NoReturn:
    """End this process as one with ``status`` has ended: with its code, or by the same signal without a core dump."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        with suppress(Exception):
            resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
            ctypes.CDLL(None).prctl(_SET_DUMPABLE, 0, 0, 0, 0)
        with suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
        with suppress(OSError, ValueError):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
            os.kill(os.getpid(), number)
        os._exit(128 + number)  # the first process of a container does not die of its own signals
    os._exit(os.WEXITSTATUS(status))


def end_within(seconds: float, status: int, late: Callable[[], object]) -> None:
    """End this process as one with ``status`` after ``seconds``, whatever it does then; call ``late`` before."""

    def end(*_: object) -> None:
        signal.signal(signal.SIGALRM, lambda *_: end_as(status))
        signal.setitimer(signal.ITIMER_REAL, LATE_SECONDS)
        late()
        end_as(status)

    signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)


def inherited_descriptors() -> list[int]:
    """Return the descriptors above those of the standard streams."""
    descriptors = [int(path.name) for path in Path("/proc/self/fd").iterdir()]
    return [descriptor for descriptor in descriptors if descriptor > 2 and _is_open(descriptor)]


def _is_open(descriptor: int) -> bool:
    """Return false for the descriptor by which the list of them was read."""
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _let_go(inherited: Sequence[int]) -> None:
    """Close what only the program needs: whoever waits for its end of a pipe, or for a lock, waits for the program
    alone."""
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for descriptor in (0, 1):
        os.dup2(nothing, descriptor)
    for descriptor in inherited:
        with suppress(OSError):
            os.close(descriptor)


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
