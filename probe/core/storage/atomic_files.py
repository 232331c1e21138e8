"""Append to files and replace them, so that a reader finds each file whole at any moment."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import TextIO

from probe.core.messages import plural
from probe.core.storage.regular_files import LONGEST_LINE

_log = logging.getLogger("probe.files")


def open_for_append(path: Path) -> FileIO:
    """Open ``path`` for reading and appending, unbuffered; the file and its directory are made if missing."""
    try:
        return path.open("a+b", buffering=0)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("a+b", buffering=0)


def append(file: FileIO, data: bytes) -> None:
    """Append ``data`` in one write, or nothing.

    Raises:
        OSError: if it does not fit, naming the file. The file is cut back to its size before, or removed if it was
            empty.
    """
    size = file.seek(0, os.SEEK_END)
    try:
        write_all(file, data)
    except OSError as error:
        error.filename = error.filename or file.name  # the error of a full disk names no file
        with suppress(OSError):
            file.truncate(size)
            if not size:
                Path(file.name).unlink()
        raise


def cut_torn_line(file: FileIO, path: Path) -> None:
    """Remove an unfinished last line of a text, which would spoil the lines that are appended; ``file`` is then at its
    end."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - LONGEST_LINE))
    torn = len(file.read().rpartition(b"\n")[2])
    if torn:
        file.truncate(size - torn)
        file.seek(0, os.SEEK_END)
        _log.warning("cut an unfinished row of %d %s off %s", torn, plural(torn, "byte"), path)


def write_all(file: FileIO, data: bytes) -> None:
    """Write ``data`` at the position of ``file``; after a short write, write the rest, which raises the error."""
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


@contextmanager
def replacing(path: Path) -> Iterator[TextIO]:
    """Open a text file (UTF-8) that becomes ``path`` in one move at the end; on an exception ``path`` stays as it was.
    An error of the file system names ``path``.

    Raises:
        OSError: if it cannot be written, or if ``path`` is no regular file: a device would be gone afterwards.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "expected a regular file, or none", str(path))
    # The leading dot keeps readers that match a prefix of the name from taking it for the file itself.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with _new_text(temporary) as file:
            yield file
        temporary.replace(path)
    except BaseException as error:
        if isinstance(error, OSError):
            error.filename = str(path) if error.filename in (None, str(temporary)) else error.filename
        with suppress(OSError):
            temporary.unlink()
        raise


def _new_text(path: Path) -> TextIO:
    """Open ``path`` for writing text; its directory is made if missing."""
    try:
        return path.open("w", encoding="utf-8", errors="backslashreplace", newline="")
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("w", encoding="utf-8", errors="backslashreplace", newline="")
