"""A growing log file that is rotated or truncated now and then."""

from __future__ import annotations

import os
import stat
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from probe.services.logs.lines import BLOCK, LineReader, LogLine

Identity = tuple[int, int]
"""Device and inode of a file."""
FINGERPRINT = 256
"""Bytes at the beginning of a file by which a truncated file that has grown again is noticed."""


class FollowedFile:
    """Reader of all that is appended to a path.

    A file that takes the path's place (rotation by renaming) is read after the old one has been read to its end; a
    truncated file is read from its beginning.
    """

    def __init__(self, path: str, everything: bool = False) -> None:
        self.path = path
        self.lines = LineReader(everything)
        self.note = ""
        """Description of the latest rotation or truncation; the reader of it empties it."""
        self._file = -1
        self._position = 0
        self._beginning = b""
        self._regular = True
        self._rotated: deque[tuple[Identity, bytes]] = deque(maxlen=64)

    def has_read(self, path: str) -> bool:
        """Return whether the file at ``path`` is one that was read here under its former name."""
        try:
            with Path(path).open("rb", buffering=0) as file:
                found, beginning = _identity(os.fstat(file.fileno())), file.read(FINGERPRINT) or b""
        except OSError:
            return False
        known = [*self._rotated]
        if self._file >= 0:
            known.append((_identity(os.fstat(self._file)), self._beginning))
        return any(found == identity and beginning.startswith(begun) for identity, begun in known)

    def poll(self) -> Iterator[LogLine]:
        """Yield the lines that have been completed since the last call.

        Raises:
            OSError: if there is a file that cannot be read.
        """
        if self._file < 0 and not self._open():
            return
        if self._regular and self._truncated():
            self.note = f"{self.path}: truncated; read from its beginning"
            os.lseek(self._file, 0, os.SEEK_SET)
            self._position, self._beginning = 0, b""
            self.lines.forget()
        yield from self._read()
        if self._regular and self._replaced():
            yield from self._read()  # written between the two calls
            yield from self.lines.end()
            self.note = f"{self.path}: rotated; the new file is read"
            self._rotated.append((_identity(os.fstat(self._file)), self._beginning))
            self.close()
            self.lines.forget()
            if self._open():
                yield from self._read()

    def end(self) -> Iterator[LogLine]:
        """Yield the line that no line feed has ended yet."""
        yield from self.lines.end()

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def _open(self) -> bool:
        try:
            self._file = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:  # between renaming and creation
            return False
        self._regular = stat.S_ISREG(os.fstat(self._file).st_mode)
        self._position, self._beginning = 0, b""
        return True

    def _read(self) -> Iterator[LogLine]:
        while True:
            try:
                data = os.read(self._file, BLOCK)
            except BlockingIOError:  # a FIFO with a writer and no data
                return
            if not data:
                return
            if len(self._beginning) < FINGERPRINT:
                self._beginning += data[: FINGERPRINT - len(self._beginning)]
            self._position += len(data)
            yield from self.lines.feed(data)

    def _truncated(self) -> bool:
        if os.fstat(self._file).st_size < self._position:
            return True
        return os.pread(self._file, len(self._beginning), 0) != self._beginning

    def _replaced(self) -> bool:
        try:
            now = Path(self.path).stat()
        except FileNotFoundError:
            return False
        return _identity(now) != _identity(os.fstat(self._file))


def _identity(found: os.stat_result) -> Identity:
    return found.st_dev, found.st_ino
