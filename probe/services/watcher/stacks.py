"""Stacks of the threads of other processes: by py-spy, which does not stop them, else by the signal of faulthandler."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from probe.core.run_state.progress_file import ProgressHeader
from probe.core.run_state.stack_signal import handles
from probe.services.watcher.processes import RankProcess

SECONDS = 10.0
"""Longest time for the stacks of all ranks."""
TRIES = 3
"""Attempts of py-spy: it reads the memory of a process that goes on, so that one may fail."""
_SIGNAL_SECONDS = 3.0
_QUIET_SECONDS = 0.2
_THREAD = re.compile(r"(?:Current thread|Thread) 0x([0-9a-f]+)(?: \[(.*)\])? \(most recent call first\):")
_FRAME = re.compile(r'  File "(.*)", line (\d+|\?\?\?) in (.*)')


class StackFrame(NamedTuple):
    """Call on a stack."""

    function: str
    file: str
    line: int


class StackThread(NamedTuple):
    """Thread with its calls, the innermost first."""

    name: str
    trains: bool
    """True for the thread that made the progress file."""
    locks: bool
    """True if it holds the interpreter's lock."""
    frames: Sequence[StackFrame]


class RankStacks(NamedTuple):
    """Stacks of a rank."""

    source: str
    """``py-spy``, ``faulthandler`` or empty."""
    threads: Sequence[StackThread] = ()
    problem: str = ""
    """Reason for which there are none."""

    @property
    def training(self) -> Sequence[StackFrame]:
        """Stack of the training thread."""
        return next((thread.frames for thread in self.threads if thread.trains), ())


class StackSubject(NamedTuple):
    """Rank whose stacks are read."""

    header: ProgressHeader
    process: RankProcess
    file: Path
    """File that gets its stacks at the signal."""


def read_stacks(subjects: Sequence[StackSubject], by_signal: bool = True) -> list[RankStacks]:
    """Read the stacks of all ranks at once, within about :data:`SECONDS`.

    Args:
        subjects: ranks.
        by_signal: whether a rank that py-spy cannot read gets its signal.
    """
    stacks_of_ranks = _by_py_spy(subjects)
    if by_signal:
        missing = [number for number, rank_stacks in enumerate(stacks_of_ranks) if not rank_stacks.source]
        for number, stacks in zip(missing, _by_signal([subjects[n] for n in missing]), strict=True):
            if stacks.source:
                stacks_of_ranks[number] = stacks
            else:
                stacks_of_ranks[number] = RankStacks("", (), f"{stacks_of_ranks[number].problem}; {stacks.problem}")
    return stacks_of_ranks


def _by_py_spy(subjects: Sequence[StackSubject]) -> list[RankStacks]:
    program = shutil.which("py-spy") or shutil.which("py-spy", path=str(Path(sys.executable).parent))
    if program is None:
        return [RankStacks("", (), "py-spy is not installed")] * len(subjects)
    end = time.monotonic() + SECONDS
    stacks = [RankStacks("", (), "py-spy failed")] * len(subjects)
    for _ in range(TRIES):
        unread = [number for number, rank_stacks in enumerate(stacks) if not rank_stacks.source]
        running = [(number, _started(program, subjects[number].header.pid)) for number in unread]
        for number, dump in running:
            stacks[number] = _read(dump, subjects[number].header, end)
    return stacks


def _started(program: str, pid: int) -> subprocess.Popen[bytes] | OSError:
    command = [program, "dump", "--nonblocking", "--json", "--pid", str(pid)]
    try:
        return subprocess.Popen(  # noqa: S603 - our own command
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    except OSError as error:
        return error


def _read(dump: subprocess.Popen[bytes] | OSError, header: ProgressHeader, end: float) -> RankStacks:
    if isinstance(dump, OSError):
        return RankStacks("", (), f"py-spy cannot be run: {dump}")
    try:
        out, err = dump.communicate(timeout=max(0.1, end - time.monotonic()))
        return RankStacks("py-spy", [_thread(thread, header) for thread in json.loads(out)])
    except subprocess.TimeoutExpired:
        dump.kill()  # not waited for: it may hang in the kernel, as may the process that it reads
        return RankStacks("", (), f"py-spy took longer than {SECONDS:g} s")
    except (ValueError, KeyError, TypeError):
        lines = err.decode("utf-8", "replace").strip().splitlines()
        return RankStacks("", (), f"py-spy: {' '.join(lines)[:300] or 'no output'}")


def _thread(thread: dict[str, Any], header: ProgressHeader) -> StackThread:
    frames = [StackFrame(frame["name"], frame["filename"], frame["line"]) for frame in thread["frames"]]
    trains = thread["os_thread_id"] == header.thread or thread["thread_id"] == header.ident
    return StackThread(thread["thread_name"] or "", trains, thread["owns_gil"], frames)


def _by_signal(subjects: Sequence[StackSubject]) -> list[RankStacks]:
    """Send the signal to all, then wait until no file grows any more."""
    before = [_size(subject.file) for subject in subjects]
    sent = [_send(subject) for subject in subjects]
    end, quiet, sizes = time.monotonic() + _SIGNAL_SECONDS, time.monotonic() + _QUIET_SECONDS, before
    while any(sent) and time.monotonic() < end:
        time.sleep(0.02)
        now = [_size(subject.file) for subject in subjects]
        grown = all(size > old for size, old, was_sent in zip(now, before, sent, strict=True) if was_sent)
        if now != sizes or not grown:
            sizes, quiet = now, time.monotonic() + _QUIET_SECONDS
        elif time.monotonic() > quiet:
            break
    return [_written(*row) for row in zip(subjects, before, sent, strict=True)]


def _send(subject: StackSubject) -> bool:
    number = subject.header.signal
    if not number or not handles(subject.header.pid, number):
        return False  # it would end the process
    subject.process.send(number)
    return True


def _written(subject: StackSubject, before: int, sent: bool) -> RankStacks:
    if not sent:
        return RankStacks("", (), "no signal is registered for stacks")
    try:
        with subject.file.open("rb") as file:
            file.seek(before)
            text = file.read().decode("utf-8", "replace")
    except OSError as error:
        return RankStacks("", (), f"no stacks at the signal: {error}")
    threads = parse_faulthandler(text, subject.header.ident)
    return RankStacks("faulthandler", threads) if threads else RankStacks("", (), "no stacks at the signal")


def parse_faulthandler(text: str, ident: int) -> list[StackThread]:
    """Parse the stacks that faulthandler has written; ``ident`` is Python's id of the training thread."""
    threads: list[StackThread] = []
    frames: list[StackFrame] = []
    for line in text.splitlines():
        if head := _THREAD.match(line):
            frames = []
            threads.append(StackThread(head[2] or "", int(head[1], 16) == ident, False, frames))
        elif frame := _FRAME.match(line):
            frames.append(StackFrame(frame[3], frame[1], int(frame[2]) if frame[2].isdigit() else 0))
    return threads


def _size(path: Path) -> int:
    with suppress(OSError):
        return os.stat(path).st_size  # noqa: PTH116 - a number, also for a missing file
    return 0
