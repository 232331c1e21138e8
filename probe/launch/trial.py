"""Trial of a program, for ``probe check``: the program runs as it is, for a few updates, and its process ends there."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from probe.core.door import FaultCounter, attempt
from probe.core.storage.files import replacing
from probe.launch.imports import after_import

STEPS = "PROBE_CHECK_STEPS"
"""Variable with the number of updates."""
FOLDER = "PROBE_CHECK_FOLDER"
"""Variable with the folder for what is seen."""
TRIALS = "trial-*.json"
RECORDERS = {"torch": "probe.pytorch.prechecks.recording", "mindspore": "probe.mindspore.prechecks"}
"""Frameworks, each with the module that records the trial."""
PATIENCE_SECONDS = 20.0
"""Time that a rank waits for those beside it before its process ends."""


def prepare_trial(environ: Mapping[str, str]) -> None:
    """Have each framework's recorder begin once the program has imported the framework, if there is a folder for it."""
    if FOLDER not in environ:
        return
    folder, steps = Path(environ[FOLDER]), int(environ.get(STEPS, "5"))
    for name, recorder in RECORDERS.items():
        after_import(name, _beginning(recorder, folder, steps))


def _beginning(recorder: str, folder: Path, steps: int) -> Callable[[ModuleType], None]:
    def begin(_: ModuleType) -> None:
        import_module(recorder).begin(folder, steps)

    return begin


def write_trial(folder: Path, rank: int, values: Mapping[str, Any]) -> None:
    """Write what this process has seen, whole or not at all.

    Raises:
        OSError: if it cannot be written.
    """
    with replacing(folder / f"trial-{rank}-{os.getpid()}.json") as file:
        json.dump(values, file)


def end_process(folder: Path, environ: Mapping[str, str], faults: FaultCounter) -> NoReturn:
    """End this process at once, without a further line of the program, when the ranks beside it have written theirs:
    a process that is gone breaks their collectives. Its workers end with it."""
    _wait_for_others(folder, environ)
    if (processes := sys.modules.get("multiprocessing")) is not None:
        for child in processes.active_children():
            attempt(faults, "end", child.terminate)
    for stream in (sys.stdout, sys.stderr):
        attempt(faults, "end", stream.flush)
    os._exit(0)


def _wait_for_others(folder: Path, environ: Mapping[str, str]) -> None:
    number = int(environ.get("LOCAL_WORLD_SIZE", "1"))
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len([*folder.glob(TRIALS)]) < number and time.monotonic() < deadline:
        time.sleep(0.02)
