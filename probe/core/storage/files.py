"""Files: opened without waiting, since their origin may be unknown, and appended to or replaced so that a reader finds
each whole at any moment."""

from __future__ import annotations

import errno
import json
import logging
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Any, TextIO

from probe.core.language import invalid, message
from probe.core.messages import plural
from probe.core.storage.location import Location, Place

MOST_JSON = 64 << 20
"""Bytes of a JSON file; one of a hundred thousand ranks has a few megabytes."""
DEEPEST = 64
"""Levels of a JSON file at most: readers process it level by level."""
LONGEST_LINE = 1 << 16
"""Bytes that lines of probe's files hardly ever exceed."""
FARTHEST = 8 << 20
"""Bytes within which the next line has to begin."""
_log = logging.getLogger("probe.files")
_permitted: list[Path] = []
"""Folders without links in their paths; none: the process may read anything."""


def opened(path: Place) -> BufferedReader:
    """Open ``path`` for reading bytes. A FIFO would wait for its writer, a device need not end: neither is opened.

    Raises:
        OSError: if it cannot be opened, is no regular file, or lies where this process may not read.
    """
    if isinstance(path, Location):
        return path.open()
    check_permitted(path)
    _check(path, path.stat())
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115 - Path.open takes no opener; the caller closes
    try:
        _check(path, os.fstat(file.fileno()))  # it may have been replaced meanwhile
    except OSError:
        file.close()
        raise
    return file


def json_of(path: Place) -> Any:
    """Return the value in the JSON file ``path``.

    Raises:
        OSError: if it cannot be read, or is no regular file.
        ValueError: if it is not JSON, or larger or deeper than the limits.
    """
    with opened(path) as file:
        data = file.read(MOST_JSON + 1)
    if len(data) > MOST_JSON:
        raise invalid("it is larger than {most} MiB", most=MOST_JSON >> 20)
    with suppress(RecursionError):
        value = json.loads(data.decode("utf-8-sig"))
        if not _is_deep(value):
            return value
    raise invalid("it is nested more than {most} levels deep", most=DEEPEST)


class FileView:
    """File that another process may write, replace or cut short meanwhile, read by position.

    Not a mapping: reading what was cut off a mapped file ends the process that reads.

    Raises:
        OSError: if it cannot be opened, or is no regular file.
    """

    def __init__(self, path: Path) -> None:
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        self._descriptor = os.open(path, flags)
        try:
            status = os.fstat(self._descriptor)
            _check(path, status)
        except OSError:
            self.close()
            raise
        self.inode, self.size = status.st_ino, status.st_size

    def read(self, at: int, size: int) -> bytes:
        """Return ``size`` bytes from the position ``at`` on; fewer if the file ends before."""
        return os.pread(self._descriptor, max(0, min(size, self.size - at)), at)

    def close(self) -> None:
        """Close the file; a further call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            self.close()


def check_lines(file: BufferedReader) -> None:
    """Check that no line of ``file`` is far longer than lines of probe's files are, such as the zeros of a preallocated
    file. Only some places are checked; a file that passes has no line of more than three times ``FARTHEST``.

    Raises:
        ValueError: if a line is.
    """
    size = file.seek(0, os.SEEK_END)
    for place in range(FARTHEST, size, FARTHEST):
        file.seek(place)
        if size - place <= FARTHEST or b"\n" in file.read(LONGEST_LINE):
            continue
        if b"\n" not in file.read(FARTHEST):
            raise invalid(
                "expected lines of text; from byte {place} on there is no line break in {number} bytes",
                place=place,
                number=FARTHEST,
            )


def _is_deep(value: Any) -> bool:
    layer = [value]
    for _ in range(DEEPEST + 1):
        lists = (
            container.values() if isinstance(container, dict) else container
            for container in layer
            if isinstance(container, dict | list)
        )
        layer = [inner for container in lists for inner in container]
    return bool(layer)


def _check(path: Path, status: os.stat_result) -> None:
    if stat.S_ISREG(status.st_mode):
        return
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, "expected a file; this is a directory", str(path))
    raise OSError(errno.EINVAL, "expected a regular file; this is a FIFO, socket or device", str(path))


def open_for_append(path: Path) -> FileIO:
    """Open ``path`` for reading and appending, unbuffered; the file and its directory are made if missing."""
    file: FileIO = _made(path, "a+b", buffering=0)
    return file


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
    file.seek(max(0, size - 1))
    if file.read(1) in (b"", b"\n"):
        return
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
def moved(path: Path, durable: bool = True) -> Iterator[Path]:
    """Yield the place of a new file, which becomes ``path`` in one move at the end; on an exception ``path`` stays as
    it was. Without a new file nothing is moved.

    Args:
        durable: True to wait until the file is on the disk.

    Raises:
        OSError: if it cannot be written.
    """
    # The leading dot keeps readers that match a prefix of the name from taking it for the file itself.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        if temporary.exists():
            if durable:
                with temporary.open("rb") as file:
                    os.fsync(file.fileno())
            temporary.replace(path)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


@contextmanager
def replacing(path: Path, private: bool = False) -> Iterator[TextIO]:
    """Open a text file (UTF-8) that becomes ``path`` in one move at the end; on an exception ``path`` stays as it was.
    An error of the file system names ``path``.

    Args:
        private: True for a file of mode 0600.

    Raises:
        OSError: if it cannot be written, or if ``path`` is no regular file: a device would be gone afterwards.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "expected a regular file, or none", str(path))
    hidden = ""
    try:
        with moved(path, durable=False) as temporary:
            hidden = str(temporary)
            if private:
                temporary.unlink(missing_ok=True)
                temporary.touch(0o600, exist_ok=False)
            with _made(temporary, "w", encoding="utf-8", errors="backslashreplace", newline="") as file:
                yield file
    except OSError as error:
        error.filename = str(path) if error.filename in (None, hidden) else error.filename
        raise


def replace_text(path: Path, text: str, private: bool = False) -> None:
    """Write a text file in one move, as :func:`replacing` does."""
    with replacing(path, private) as file:
        file.write(text)


PAGES = (".html", ".htm")
"""Endings of the names of pages."""


def check_target(out: Path, *endings: str) -> None:
    """Check that a file can be written as ``out``.

    Args:
        endings: those of its format; a name may also have none.

    Raises:
        ValueError: if its folder is missing, or if something else has its name, or if that ends like another format.
    """
    if endings and out.suffix[1:].isalpha() and out.suffix.lower() not in endings:
        names = " or ".join(endings)
        text = "{out}: expected a name that ends with {names}, got {ending}; no other format is written"
        raise invalid(text, out=out, names=names, ending=out.suffix)
    if not out.parent.is_dir():
        reason = message("there is no folder {folder}: make it first", folder=out.parent)
    elif out.exists() and not out.is_file():
        reason = message("this is a {kind}: choose another name", kind=message("folder" if out.is_dir() else "device"))
    else:
        return
    raise invalid("{out}: expected the name of a file in a directory that exists; {reason}", out=out, reason=reason)


def append_line(path: Path, line: str) -> None:
    """Append a line to a text file, whose unfinished last line is removed; file and directory are made if missing.

    Raises:
        OSError: as :func:`append` does.
    """
    with open_for_append(path) as file:
        cut_torn_line(file, path)
        append(file, line.encode())


def _made(path: Path, mode: str, **options: Any) -> Any:
    """Open ``path`` for writing; its directory is made if missing."""
    try:
        return path.open(mode, **options)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open(mode, **options)


def confine(places: Iterable[Path]) -> None:
    """Let this process read what is in ``places`` alone, from now on, whatever links are there."""
    _permitted[:] = [place.resolve() for place in places] or [Path(os.devnull)]


def permit(folder: Path) -> None:
    """Let this process also read a folder of its own, if it is confined."""
    if _permitted:
        _permitted.append(folder.resolve())


def leads_out(path: Path) -> bool:
    """Return whether a link in ``path`` leads out of the folders that this process may read."""
    if not _permitted:
        return False
    real = path.resolve()
    return not any(real.is_relative_to(folder) for folder in _permitted)


def check_permitted(path: Path) -> None:
    """Check that a path may be read.

    Raises:
        OSError: if a link leads out of the folders.
    """
    if leads_out(path):
        trouble = "a link leads out of the folders of this command: it is not followed; name its target as one of them"
        raise OSError(errno.ELOOP, trouble, str(path))
