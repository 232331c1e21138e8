"""Files that are parsed: those of a directory, compressed ones, standard input; the rank that a file's name states."""

from __future__ import annotations

import gzip
import os
import re
import stat
import sys
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import BinaryIO, cast

from probe.core.errors import advice_of
from probe.core.language import MessageError, message
from probe.core.storage.manifest import FILE as MANIFEST
from probe.core.storage.run_directory import parsed_name
from probe.services.logs.lines import BLOCK

STANDARD_INPUT = "-"
SNIFFED = 4096
"""Bytes at the beginning of a file by which text files of a directory are known."""
RANKS = (
    re.compile(r"(?i)(?:^|[^a-z])(?:global_)?rank[_-]?(\d{1,7})(?:[^\d/][^/]*)?$"),  # rank3.log, rank_3.log.gz
    re.compile(r"(?i)(?:^|[^a-z])rank[_-]?(\d{1,7})/[^/]{1,255}$"),  # rank_3/info.log
    re.compile(r"(?i)(?:^|[^a-z])worker[_-](\d{1,7})(?:[^\d/][^/]*)?$"),  # msrun: worker_3.log
    re.compile(r"attempt_\d{1,6}/(\d{1,7})/std(?:out|err)\.log$"),  # torchrun --log-dir
)


class SourceError(MessageError):
    """A file that cannot be read, with the reason."""


def rank_of_path(path: str) -> int | None:
    """Return the rank that the name of a file or of its folder states, or None.

    In torchrun's folders the number is the local rank, which is the rank on one node.
    """
    last = "/".join(Path(path).parts[-3:])
    return next((int(found[1]) for each in RANKS if (found := each.search(last))), None)


def files_of(place: str, left_out: tuple[int, int] | None = None) -> tuple[list[str], list[str]]:
    """Return the files to read in ``place`` and those that are passed over, in the order of their names.

    Args:
        place: A file, a FIFO, ``-`` for standard input, or a directory, which is searched for text files.
        left_out: Device and inode of a file that is not read, since output is written to it.

    Raises:
        SourceError: if there is nothing of that name, or a file that is no text.
    """
    if place == STANDARD_INPUT:
        return [place], []
    try:
        kind = Path(place).stat()
    except (OSError, ValueError) as error:
        raise SourceError(
            "{place}: expected a file, a directory or -; {error}", place=place, error=_reason(place, error)
        ) from None
    if not stat.S_ISDIR(kind.st_mode):
        if stat.S_ISREG(kind.st_mode) and not _is_text(place):
            raise SourceError(
                "{place}: expected lines of text, got a binary file (a NUL among its first bytes); give the log of "
                "the training",
                place=place,
            )
        return [place], []
    taken: list[str] = []
    passed: list[str] = []
    for folder, folders, names in os.walk(place):
        folders.sort()
        if MANIFEST in names and parsed_name(Path(folder).name) is not None:  # rows of a run, and no log
            continue
        for path in (os.path.join(folder, name) for name in sorted(names)):  # noqa: PTH118 - names may be any bytes
            if not _is_left_out(path, left_out):
                (taken if _is_text(path) else passed).append(path)
    return taken, passed


def _reason(place: str, error: Exception) -> str:
    """Return what is wrong with a place where there is nothing."""
    if "://" in place:
        return message("nothing is read from a server: load it down, or pipe it to `probe logs parse -`")
    if {*"*?["} & {*place}:
        return message("there is no file of this name: leave the quotes out, so that the shell finds the files")
    if isinstance(error, FileNotFoundError):
        return message("there is no such file or folder: check the path")
    return advice_of(error)


def blocks(place: str) -> Iterator[bytes]:
    """Yield the content of a file in blocks, as soon as there are any; gzip is unpacked.

    Raises:
        SourceError: if it cannot be read to its end.
    """
    try:
        if place == STANDARD_INPUT:
            yield from _read(sys.stdin.fileno())
            return
        with closing(cast("BinaryIO", open(place, "rb", buffering=0))) as file:  # noqa: PTH123
            if place.endswith(".gz"):
                with gzip.GzipFile(fileobj=file) as unpacked:
                    while data := unpacked.read1(BLOCK):
                        yield data
            else:
                yield from _read(file.fileno())
    except gzip.BadGzipFile:
        raise SourceError(
            "{place}: expected gzip, as the name says, got something else; rename a text without .gz", place=place
        ) from None
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise SourceError("{place}: cannot be read: {error}", place=place, error=advice_of(error)) from None


def size_of(place: str) -> int:
    """Return the size of a file in bytes; 0 if it is none or has none."""
    try:
        found = Path(place).stat()
    except (OSError, ValueError):
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


def _read(descriptor: int) -> Iterator[bytes]:
    while data := os.read(descriptor, BLOCK):
        yield data


def _is_left_out(path: str, left_out: tuple[int, int] | None) -> bool:
    if left_out is None:
        return False
    try:
        found = Path(path).stat()
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == left_out


def _is_text(path: str) -> bool:
    """Return whether a file of a directory is a regular one that begins without a NUL byte."""
    try:
        if not stat.S_ISREG(Path(path).stat().st_mode):
            return False
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123
            head = file.read(SNIFFED)
    except OSError:
        return True  # reported when it is read
    return path.endswith(".gz") or b"\0" not in (head or b"")
