"""Programs as child processes: in a group of their own, with a deadline, and without a shell."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from probe.core.alerting.redaction import redact
from probe.core.messages import printable
from probe.core.process_identity import boot, process_state
from probe.services.remediation.planned_action import Execution, FailedActionError, InterruptedActionError

MOST_OUTPUT = 1_000
"""Most bytes of a program's output that are kept: the last ones."""
LOOK_SECONDS = 0.05
"""Longest time in seconds between two looks at the program."""
GRACE_SECONDS = 5.0
"""Time in seconds that a program has for its work after the service was asked to end."""
LEFT_OVER = 1 << 20
"""Most bytes that are read after the program has ended: processes that it began may write on."""


class ProgramResult(NamedTuple):
    """End of a program."""

    code: int
    """Exit code; that of a signal is negative."""
    text: str
    """End of its output, on one line, without secrets."""


def run_program(argv: Sequence[str], environment: Mapping[str, str], execution: Execution) -> ProgramResult:
    """Run a program and wait for its end. After the deadline it is killed with all processes of its group.

    Raises:
        FailedActionError: if it cannot be started, or has not ended at the deadline.
        InterruptedActionError: if the service ends before it.
    """
    try:
        process = subprocess.Popen(  # noqa: S603 - a program of the allow-list, without a shell
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd="/",
            env=dict(environment),
            start_new_session=True,
        )
    except OSError as error:
        raise FailedActionError(f"{argv[0]}: cannot be started: {error.strerror}") from None
    try:
        execution.record(f"process {process.pid} runs {' '.join(argv)}", identity_of(process.pid))
        text = _output(process, execution)
        return ProgramResult(process.wait(), printable(redact(text.decode("utf-8", "replace").strip())))
    finally:
        if process.poll() is None:
            _kill_group(process.pid)
            process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _output(process: subprocess.Popen[bytes], execution: Execution) -> bytes:
    """Read the output until the program ends, which may be later than its last byte, or earlier."""
    assert process.stdout is not None
    descriptor, output, open_ = process.stdout.fileno(), b"", True
    os.set_blocking(descriptor, False)
    ending_since = 0.0
    while process.poll() is None:
        if execution.ending.is_set():
            ending_since = ending_since or time.monotonic()
            if time.monotonic() - ending_since >= GRACE_SECONDS:
                raise InterruptedActionError("the service has ended, and the program was killed")
        if not execution.left:
            raise FailedActionError(f"killed with all its processes: not finished within {execution.seconds:g} s")
        if not open_:
            with suppress(subprocess.TimeoutExpired):
                process.wait(LOOK_SECONDS)
        elif select.select([descriptor], [], [], LOOK_SECONDS)[0]:
            data = _read(descriptor)
            open_ = data != b""
            output = (output + (data or b""))[-MOST_OUTPUT:]
    size = 0
    while open_ and size < LEFT_OVER and (data := _read(descriptor)):
        size += len(data)
        output = (output + data)[-MOST_OUTPUT:]
    return output


def _read(descriptor: int) -> bytes | None:
    """Read what is there; None if nothing is, empty at the end."""
    try:
        return os.read(descriptor, 1 << 16)
    except BlockingIOError:
        return None


def identity_of(pid: int) -> str:
    """Return a text that names the process for all time: its number, the boot and its start within it; empty if it has
    ended or the system has no such information."""
    this_boot, started = boot(), process_state(pid).started
    return f"{pid} {this_boot} {started}" if this_boot and started >= 0 else ""


def kill_left_over(identity: str) -> bool:
    """Kill the group of the process ``identity`` if that runs still; return whether it did."""
    pid = identity.partition(" ")[0]
    if not pid.isdecimal() or identity_of(int(pid)) != identity:
        return False
    _kill_group(int(pid))
    return True


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
