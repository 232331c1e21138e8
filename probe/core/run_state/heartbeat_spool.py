"""Messages that could not be sent before the end of a process, kept in files for the next one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from probe.core.faults import Faults
from probe.core.run_state.heartbeat_messages import KINDS, Origin
from probe.core.storage.files import replacing

WHERE = "heartbeats: kept files"
"""The place at which failures are counted."""
MOST_FILES = 20
"""Most files of one rank; further ones, the oldest, are removed."""
LARGEST_FILE = 1 << 26
"""Largest file in bytes that is read."""


class KeptMessages(NamedTuple):
    """Messages of a process that has ended."""

    file: Path
    origin: Origin
    messages: tuple[tuple[str, bytes], ...]
    """Endpoint and JSON of each, in order."""


class HeartbeatSpool:
    """Folder of files with the messages of one rank that were not sent: one file a process."""

    def __init__(self, folder: Path, job: str, rank: int, faults: Faults) -> None:
        self._folder, self._job, self._rank, self._faults = folder, job, rank, faults

    def keep(self, origin: Origin, messages: Sequence[bytes]) -> bool:
        """Write ``messages``; return whether they are on disk."""
        lines = [json.dumps(origin._asdict()).encode(), *messages]
        try:
            with replacing(self._folder / f"{self._prefix}{origin.run}.jsonl") as file:
                file.writelines(f"{line.decode()}\n" for line in lines)
        except OSError as error:
            self._faults.note(WHERE, error)
            return False
        return True

    def waiting(self) -> list[KeptMessages]:
        """Read the files, the oldest first. One that cannot be read, or of another job, is left where it is."""
        try:
            files = sorted(self._folder.glob(f"{self._prefix}*.jsonl"), key=lambda file: file.stat().st_mtime)
        except OSError as error:
            self._faults.note(WHERE, error)
            return []
        for file in files[:-MOST_FILES]:
            self.remove(file)
            self._faults.lost(f"{WHERE}: removed, more than {MOST_FILES}", 1)
        contents = [self._read(file) for file in files[-MOST_FILES:]]
        return [batch for batch in contents if batch is not None and batch.origin.job == self._job]

    def remove(self, file: Path) -> None:
        """Remove a file whose messages were sent."""
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            self._faults.note(WHERE, error)

    @property
    def _prefix(self) -> str:
        return f"heartbeats-{self._rank}-"

    def _read(self, file: Path) -> KeptMessages | None:
        try:
            if file.stat().st_size > LARGEST_FILE:
                raise OSError(f"{file}: larger than {LARGEST_FILE} bytes")
            first, *lines = file.read_bytes().splitlines()
            origin = Origin(**json.loads(first))
            return KeptMessages(file, origin, tuple((KINDS[json.loads(line)["kind"]], line) for line in lines))
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            self._faults.note(WHERE, error)
            return None
