"""Program of ``probe check``: started under ``probe run`` with an environment of a trial, and what it has left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

from probe.core.checks.check import CheckFinding
from probe.core.child_process import python_module
from probe.core.language import unpacked
from probe.core.launch import WATCHED
from probe.core.prechecks.trial import Trial
from probe.core.sentinel.board import BOARD
from probe.launch.environment import CHECKED, CONFIG, SWITCH
from probe.launch.trial import FOLDER, STEPS, TRIALS

CONFIGURATION: Mapping[str, object] = {
    "wg_distribution": True,
    "ops": ["norm", "min", "max", "nans"],
    "format": ["csv"],
    "sentinel": {"enable": True},
}
"""Configuration of a trial: that of ``probe run`` at every step."""
WITHOUT_TRACE: Mapping[str, str] = {
    "WANDB_MODE": "disabled",
    "COMET_MODE": "DISABLED",
    "NEPTUNE_MODE": "debug",
    "SWANLAB_MODE": "disabled",
}
"""Variables that keep trackers from sending anything."""
GRACE_SECONDS = 20.0
"""Time that a program has to end after SIGTERM."""
LONGEST = 60
"""Characters of a folder at most in which sockets of the program find room: their paths have 108 at most."""
TIMED_OUT = 124


class TrialRecord(NamedTuple):
    """Record that one process of the program has written."""

    trial: Trial
    findings: tuple[CheckFinding, ...]
    preflight: str
    """Line about the checks of the loop; empty if there were none."""
    faults: Mapping[str, int]
    """Failures inside probe."""


def run_program(command: Sequence[str], steps: int, folder: Path, limit: float, log: Path | None) -> int:
    """Run a program for a few updates; return its exit code, 124 if it took longer than ``limit`` seconds.

    Args:
        folder: for everything that is seen.
        log: file for what it prints; None for standard error.
    """
    config = folder / "configuration.json"
    config.write_text(json.dumps(CONFIGURATION), encoding="utf-8")
    with ExitStack() as files:
        temporary = files.enter_context(tempfile.TemporaryDirectory(prefix="probe-", ignore_cleanup_errors=True))
        output = sys.stderr.fileno() if log is None else files.enter_context(log.open("wb"))
        process = subprocess.Popen(  # noqa: S603 - the user's own command
            python_module("probe", "run", "--config", str(config), "--", *command),
            env=environment(os.environ, steps, folder, temporary),
            stdout=output,
            stderr=subprocess.STDOUT if log is not None else output,
        )
        return _waited(process, limit)


def environment(environ: Mapping[str, str], steps: int, folder: Path, temporary: str) -> dict[str, str]:
    """Return the environment of a trial, whose temporary files are in a folder of their own."""
    variables = {name: value for name, value in environ.items() if name not in (CONFIG, WATCHED, BOARD, SWITCH)}
    trial = {
        CHECKED: "1",
        STEPS: str(steps),
        FOLDER: str(folder),
        "MONITOR_OUTPUT_DIR": str(folder / "files"),
    }
    if len(temporary) < LONGEST:
        trial["TMPDIR"] = temporary
    return {**variables, **WITHOUT_TRACE, **trial}


def _waited(process: subprocess.Popen[bytes], limit: float) -> int:
    """Wait for the end; pass Ctrl-C, which the program gets from the terminal, on when it has ended."""
    deadline = time.monotonic() + limit
    try:
        return process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        _end(process)
        return TIMED_OUT
    except BaseException:
        _end(process)
        raise


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            process.send_signal(number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_SECONDS)


def read_records(folder: Path) -> list[TrialRecord]:
    """Return the records of all processes, by rank; of several processes of a rank, those with most updates.

    Raises:
        ValueError, KeyError, TypeError: if one cannot be read.
    """
    records: dict[int, TrialRecord] = {}
    for path in sorted(folder.glob(TRIALS)):
        record = _parsed(json.loads(path.read_text(encoding="utf-8")))
        rank = record.trial.rank
        if rank not in records or record.trial.updates > records[rank].trial.updates:
            records[rank] = record
    return [records[rank] for rank in sorted(records)]


def _parsed(values: Mapping[str, Any]) -> TrialRecord:
    findings = [
        CheckFinding(
            **{
                **fields,
                "where": tuple(fields["where"]),
                "ranks": tuple(fields["ranks"]),
                "text": unpacked(fields["text"]),
            }
        )
        for fields in values["findings"]
    ]
    preflight = unpacked(values["preflight"])
    return TrialRecord(Trial.of(values["trial"]), tuple(findings), preflight, dict(values["faults"]))
