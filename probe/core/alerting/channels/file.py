"""Channel ``file``: lines of JSON."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from probe.core.alerting.channels.address import AddressError, Name
from probe.core.alerting.channels.exchange import NotReceived
from probe.core.alerting.channels.message import as_json
from probe.core.fields import Section
from probe.core.records import Alert

POLL_SECONDS = 0.02
"""Time between two attempts to lock the file, which other ranks may hold."""


class FileArgs(Section):
    """File."""

    path: Name
    """File to which a line of JSON is appended for each alert; all ranks may write to one file."""


class File:
    """Writer of a line for each alert."""

    Args: ClassVar[type[Section]] = FileArgs
    sends: ClassVar[str] = "appends a line of JSON for each alert to the file path"

    def __init__(self, args: FileArgs) -> None:
        self._path = Path(args.path).expanduser().absolute()  # the program may change its directory
        if not self._path.parent.is_dir():
            raise AddressError([("path", f'expected a file in a folder that is there, got "{args.path}"; make it')])
        if self._path.is_dir() or not os.access(self._path if self._path.exists() else self._path.parent, os.W_OK):
            raise AddressError([("path", f'expected a file that can be written, got "{args.path}"')])

    def check(self, timeout: float) -> None:
        """Do nothing: the folder was there when the run began."""

    def send(self, alerts: Sequence[Alert], timeout: float) -> None:
        """Append all lines, or none."""
        data = "".join(json.dumps(as_json(alert)) + "\n" for alert in alerts).encode()
        try:
            descriptor = os.open(
                self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o600
            )
            try:
                _lock(descriptor, timeout)
                _append(descriptor, data)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise NotReceived(f"{self._path}: {error.strerror or error}") from None


def _lock(descriptor: int, timeout: float) -> None:
    end = time.monotonic() + timeout
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                raise
        time.sleep(POLL_SECONDS)


def _append(descriptor: int, data: bytes) -> None:
    size, rest = os.fstat(descriptor).st_size, memoryview(data)
    try:
        while rest:
            rest = rest[os.write(descriptor, rest) :]
    except OSError:
        if rest.nbytes < len(data):
            os.ftruncate(descriptor, size)
        raise
