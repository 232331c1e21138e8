"""Files of unknown origin, opened without waiting: regular files only, within limits of size."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterable
from io import BufferedReader
from pathlib import Path
from typing import Any

MOST_JSON = 64 << 20
"""Bytes of a JSON file; one of a hundred thousand ranks has a few megabytes."""
DEEPEST = 64
"""Levels of a JSON file at most: readers process it level by level."""
LONGEST_LINE = 1 << 16
"""Bytes that lines of probe's files hardly ever exceed."""
FARTHEST = 8 << 20
"""Bytes within which the next line has to begin."""


def opened(path: Path) -> BufferedReader:
    """Open ``path`` for reading bytes. A FIFO would wait for its writer, a device need not end: neither is opened.

    Raises:
        OSError: if it cannot be opened, or is no regular file.
    """
    _check(path, path.stat())
    file = open(path, "rb", opener=_without_waiting)  # noqa: SIM115 - Path.open takes no opener; the caller closes
    try:
        _check(path, os.fstat(file.fileno()))  # it may have been replaced meanwhile
    except OSError:
        file.close()
        raise
    return file


def json_of(path: Path) -> Any:
    """Return the value in the JSON file ``path``.

    Raises:
        OSError: if it cannot be read, or is no regular file.
        ValueError: if it is not JSON, or larger or deeper than the limits.
    """
    with opened(path) as file:
        data = file.read(MOST_JSON + 1)
    if len(data) > MOST_JSON:
        raise ValueError(f"it is larger than {MOST_JSON >> 20} MiB")
    try:
        value = json.loads(data.decode("utf-8"))
    except RecursionError:
        value = None
        is_deep = True
    else:
        is_deep = _is_deep(value)
    if is_deep:
        raise ValueError(f"it is nested more than {DEEPEST} levels deep")
    return value


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
            raise ValueError(f"expected lines of text; from byte {place} on there is no line break in {FARTHEST} bytes")


def _without_waiting(name: str, flags: int) -> int:
    return os.open(name, flags | os.O_NONBLOCK)


def _is_deep(value: Any) -> bool:
    layer = [value]
    for _ in range(DEEPEST + 1):
        layer = [inner for each in layer if isinstance(each, dict | list) for inner in _inside(each)]
    return bool(layer)


def _inside(each: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return each.values() if isinstance(each, dict) else each


def _check(path: Path, found: os.stat_result) -> None:
    if stat.S_ISREG(found.st_mode):
        return
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, "expected a file; this is a directory", str(path))
    raise OSError(errno.EINVAL, "expected a regular file; this is a FIFO, socket or device", str(path))
