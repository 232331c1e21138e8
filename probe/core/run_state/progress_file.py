"""Layout of the mapped file by which a rank shows its progress, and the reader of it.

A file has a header (JSON, written once), one row that the rank rewrites, the names of phases, and for each phase a
histogram of its stretches: the times from one sign of progress to the next.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from probe.core.storage.files import FileView

MAGIC = b"probe-progress-1\n"
"""First bytes of a file: its kind and the version of its layout."""
SUFFIX = ".progress"
HEADER_BYTES = 2048
ROW = struct.Struct("<qQQQQ")
"""Step, time of the last sign of progress, end of a promise (0: none), state, check; times in nanoseconds of
``time.monotonic_ns``, which counts alike in all processes of a node and stands still while the machine is suspended."""
ROW_AT = HEADER_BYTES
NAMES_AT, NAME_BYTES = 3072, 64
PHASES = ("start", "step", "compile", "evaluation", "checkpoint", "data")
"""Phases that every file has; ``start`` lasts until the end of the first step."""
START, STEP = 0, 1
MOST_PHASES = 16
OTHER = MOST_PHASES - 1
"""Number of the phase that stands for all names for which there is no room."""
HISTOGRAMS_AT, BUCKETS = 4096, 128
SIZE = HISTOGRAMS_AT + MOST_PHASES * BUCKETS * 4
UNIT_BITS = 20
"""Durations are counted in units of 2^20 ns, about a millisecond."""
RUNNING, ENDED, EXITING = 0, 1, 2
"""Ways in which a rank is: it trains; it has ended training; Python has begun to exit without that."""
WAYS = 4
PROGRESS_SINCE = 1
"""Bit of the end of a promise: the rank has shown progress since it made it."""
TRIES = 100


class ProgressHeader(NamedTuple):
    """Facts about a rank that do not change."""

    pid: int
    started: int
    """Time of the start of the process, in clock ticks since boot: a later process of the same id has another."""
    rank: int
    ranks: int
    """Number of ranks of the job."""
    job: str
    thread: int
    """Native id of the training thread."""
    ident: int
    """Python's id of the same thread."""
    signal: int
    """Signal at which the rank writes its stacks; 0 if none."""


class ProgressRow(NamedTuple):
    """Progress of a rank at one moment."""

    step: int
    """Number of the last finished step; -1 before the first one."""
    time: int
    until: int
    """End of a promise; 0 if none."""
    phase: str
    way: int
    """One of ``RUNNING``, ``ENDED``, ``EXITING``."""


def check(step: int, time: int, until: int, state: int) -> int:
    """Return the sum by which a reader notices a row of which only a part is new: processors may show the stores of
    another in any order. The multipliers differ, so that no two changed values cancel each other."""
    return (time * 3 + step * 5 + state * 7 + until * 11) & 0xFFFF_FFFF_FFFF_FFFF


def bucket_of(units: int) -> int:
    """Return the number of the bucket of a duration: four to each doubling."""
    if units < 4:
        return units
    bits = units.bit_length()
    return min((bits - 2 << 2) | ((units >> bits - 3) & 3), BUCKETS - 1)


def longest_in(bucket: int) -> float:
    """Return the upper end of a bucket in seconds."""
    group, part = divmod(bucket, 4)
    return ((bucket + 1) if group == 0 else (5 + part) << (group - 1)) * (1 << UNIT_BITS) / 1e9


class ProgressReader:
    """Reader of the file of one rank.

    Raises:
        OSError: if the file cannot be opened.
        ValueError: if it has another layout.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = FileView(path)
        self.inode = self._file.inode
        if self._file.size != SIZE or self._file.read(0, len(MAGIC)) != MAGIC:
            self.close()
            raise ValueError(f"{path}: expected a file of progress, version {MAGIC.decode().strip()}")
        self.header = ProgressHeader(**self._header())
        self._last: ProgressRow | None = None

    def _header(self) -> dict[str, Any]:
        header: dict[str, Any] = json.loads(self._file.read(len(MAGIC), HEADER_BYTES - len(MAGIC)).rstrip(b"\0"))
        return header

    def row(self) -> ProgressRow | None:
        """Return the row; the one before if a process ended while it wrote."""
        for _ in range(TRIES):
            data = self._file.read(ROW_AT, ROW.size)
            if len(data) < ROW.size:  # it was cut short
                break
            step, time, until, state, written = ROW.unpack(data)
            if check(step, time, until, state) == written:
                phase, way = divmod(state, WAYS)
                self._last = ProgressRow(step, time, until, self.name(phase), way)
                break
        return self._last

    def name(self, phase: int) -> str:
        name = self._file.read(NAMES_AT + phase * NAME_BYTES, NAME_BYTES)
        return name.rstrip(b"\0").decode("utf-8", "replace") or "other"

    def counts(self, phase: str) -> Sequence[int]:
        """Return the histogram of the stretches of a phase."""
        number = next((place for place in range(MOST_PHASES) if self.name(place) == phase), OTHER)
        at = HISTOGRAMS_AT + number * BUCKETS * 4
        return struct.unpack(f"<{BUCKETS}I", self._file.read(at, BUCKETS * 4).ljust(BUCKETS * 4, b"\0"))

    def close(self) -> None:
        self._file.close()
