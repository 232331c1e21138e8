"""Numbers of training that a program writes to a JSON file: the way in for programs that do not use the monitor.

The file is one object, such as ``{"job_name": "pretrain", "step": 10, "loss": 2.5, "throughput": 512.0}``. The program
may rewrite it in place: a file that is missing or half written is no error, and the last good values are shown until
they are 15 minutes old.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from probe.core.messages import printable
from probe.core.output.metrics.catalogue import Metric
from probe.core.storage.files import opened

LONGEST_SECONDS = 900.0
"""Age of values in seconds from which on they are not shown."""
MOST_BYTES = 1 << 20
"""Most bytes of a file."""
LONGEST_NAME = 200

_JOB = ("job_name",)
NUMBERS: dict[str, Metric] = {
    "loss": Metric("training_loss", "Loss.", _JOB),
    "throughput": Metric("training_throughput_samples_per_second", "Samples a second.", _JOB),
    "gradient_norm": Metric("training_gradient_norm", "Norm of all gradients.", _JOB),
    "learning_rate": Metric("training_learning_rate", "Learning rate.", _JOB),
    "step": Metric("training_step", "Number of the step.", _JOB),
    "epoch": Metric("training_epoch", "Number of the epoch.", _JOB),
    "step_time": Metric("training_step_seconds", "Seconds that a step took.", _JOB),
    "accuracy": Metric("training_accuracy", "Accuracy, as the program computes it.", _JOB),
    "val_loss": Metric("training_validation_loss", "Loss on validation data.", _JOB),
}
"""Metrics by the key in the file; other keys are ignored."""
GRADIENT_NORM = Metric("gradient_norm", "Norm of all gradients, under the name that older rules have.", _JOB)
UPDATED = Metric("training_last_update_timestamp_seconds", "Time at which the file was written, in Unix time.", _JOB)
_TEXT = re.compile(r"\s*[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?\s*", re.ASCII)
_WORDS = {"nan": math.nan, "inf": math.inf, "infinity": math.inf, "-inf": -math.inf, "-infinity": -math.inf}

_log = logging.getLogger("probe.exporter")


class JobNumbers(NamedTuple):
    """Numbers of one job."""

    job: str
    written: float
    """Time at which the file was written, in Unix time."""
    values: Mapping[str, float]
    """Values by key."""


class JsonNumbers:
    """Files of numbers.

    Args:
        paths: the files; none needs to be there.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._marks: dict[Path, tuple[int, int, int]] = {}
        self._known: dict[Path, JobNumbers] = {}
        self._paths = paths
        self._broken: set[Path] = set()

    @property
    def unreadable(self) -> int:
        """Number of files at the last look that are there and cannot be read."""
        return len(self._broken)

    def look(self) -> list[JobNumbers]:
        """Return the numbers of each job; of two files of the same job, those that were written last."""
        for path in self._paths:
            try:
                self._read(path)
                self._broken.discard(path)
            except FileNotFoundError:
                self._broken.discard(path)
            except (OSError, ValueError, RecursionError) as error:
                if path not in self._broken:
                    _log.info("%s is left out: %s", path, error)
                self._broken.add(path)
        oldest = time.time() - LONGEST_SECONDS
        jobs: dict[str, JobNumbers] = {}
        for numbers in sorted(self._known.values(), key=lambda job_numbers: job_numbers.written):
            if numbers.written > oldest:
                jobs[numbers.job] = numbers
        return [jobs[name] for name in sorted(jobs)]

    def _read(self, path: Path) -> None:
        """Read ``path`` if it has changed since it was last read as a whole."""
        with opened(path) as file:
            status = os.fstat(file.fileno())
            mark = status.st_ino, status.st_mtime_ns, status.st_size
            if self._marks.get(path) == mark:
                return
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise ValueError(f"expected at most {MOST_BYTES >> 20} MiB")
        value = json.loads(data)
        if not isinstance(value, dict):
            raise ValueError("expected an object")
        self._known[path] = JobNumbers(_name(value), status.st_mtime, _values(value))
        self._marks[path] = mark


def _name(value: Mapping[str, Any]) -> str:
    name = value.get("job_name")
    return printable(name[:LONGEST_NAME]) if isinstance(name, str) and name else "unknown"


def _values(value: Mapping[str, Any]) -> dict[str, float]:
    numbers = {key: _number(value[key]) for key in NUMBERS if key in value}
    return {key: number for key, number in numbers.items() if number is not None}


def _number(value: Any) -> float | None:
    """Return a number, also one that is written as a text; None for anything else."""
    if isinstance(value, str):
        short = value[:64].strip().lower()
        return _WORDS.get(short, float(short) if _TEXT.fullmatch(short) else None)
    if type(value) not in (int, float):
        return None
    try:
        return float(value)
    except OverflowError:  # an integer beyond the largest number
        return None
