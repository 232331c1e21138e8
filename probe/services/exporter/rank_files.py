"""Files of the ranks of a node: found at each scrape, opened once."""

from __future__ import annotations

import logging
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from probe.core.output.metrics import mapped_file
from probe.core.output.metrics.mapped_file import MetricsReader
from probe.core.run_state import progress_file
from probe.core.run_state.progress import FOLDER
from probe.core.run_state.progress_file import ProgressReader

MOST_FILES = 4_096
"""Most files of ranks that are read on one node."""
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - folders in it are read, none is made
FOLDER_SECONDS = 5.0
"""Time from one look for folders to the next."""
_LARGEST_PID = 1 << 31
_OF_USER = re.compile("probe-[0-9]+")

_log = logging.getLogger("probe.exporter")

Reader = MetricsReader | ProgressReader
READERS: Mapping[str, Callable[[Path], Reader]] = {
    mapped_file.SUFFIX: MetricsReader,
    progress_file.SUFFIX: ProgressReader,
}
"""Readers by the ending of a file's name."""


class UsualFolders:
    """Folders in which ranks have their files, if no others are named: those of every user of the node. They are looked
    for every few seconds, since a folder for temporary files may be full of others.

    Args:
        environ: environment variables.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._environ = environ
        self._found: list[Path] = []
        self._next = 0.0

    def __call__(self) -> list[Path]:
        if time.monotonic() >= self._next:
            self._found = list(self._look())
            self._next = time.monotonic() + FOLDER_SECONDS
        return self._found

    def _look(self) -> Iterator[Path]:
        if folder := self._environ.get(FOLDER):
            yield Path(folder)
            return
        for above in dict.fromkeys([SHARED_MEMORY, tempfile.gettempdir()]):
            with suppress(OSError), os.scandir(above) as entries:
                yield from (Path(entry.path) for entry in entries if _OF_USER.fullmatch(entry.name))


class RankFile(NamedTuple):
    """File that has been found, with its reader."""

    path: Path
    inode: int
    size: int
    reader: Reader | None
    """None: it cannot be read, or is of no interest any more."""
    unreadable: bool


class RankFiles:
    """Files of ranks in some folders and in the folders of these.

    Args:
        folders: called at each look; returns the folders.
    """

    def __init__(self, folders: Callable[[], Sequence[Path]]) -> None:
        self._folders = folders
        self._files: dict[str, RankFile] = {}
        self.unreadable = 0
        """Files at the last look that are none of a rank, or only a part of one."""
        self.unreadable_folders = 0
        """Folders at the last look that this user may not read."""

    def look(self) -> Mapping[str, RankFile]:
        """Return the files that are there now, by path. A file that was replaced or cut short is opened again."""
        self.unreadable_folders = 0
        files: dict[str, RankFile] = {}
        for entry in self._found():
            if len(files) == MOST_FILES:
                break
            file = self._file(entry)
            if file is not None:
                files[entry.path] = file
        self._files = files
        self.unreadable = sum(file.unreadable for file in files.values())
        return files

    def forget(self, path: Path) -> None:
        """Read the file no longer, unless it is replaced."""
        file = self._files.get(str(path))
        if file is not None:
            self._files[str(path)] = file._replace(reader=None)

    def _found(self) -> Iterator[os.DirEntry[str]]:
        for folder in self._folders():
            for entry in self._listed(str(folder)):
                if _is_folder(entry):
                    yield from (file for file in self._listed(entry.path) if _suffix(file.name) in READERS)
                elif _suffix(entry.name) in READERS:
                    yield entry

    def _listed(self, folder: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(folder) as entries:
                return list(entries)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError:
            self.unreadable_folders += 1
            return []

    def _file(self, entry: os.DirEntry[str]) -> RankFile | None:
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError:  # it is gone already
            return None
        previous = self._files.get(entry.path)
        mark = status.st_ino, status.st_size
        if previous is not None and not previous.unreadable and (previous.inode, previous.size) == mark:
            return previous
        path = Path(entry.path)
        try:
            reader: Reader | None = opened_reader(path)
        except FileNotFoundError:
            return None
        except Exception as error:  # noqa: BLE001 - anybody's file, with anything in it
            if previous is None:
                _log.info("%s is left out: %s", path, error)
            reader = None
        return RankFile(path, status.st_ino, status.st_size, reader, reader is None)


def opened_reader(path: Path) -> Reader:
    """Open a file of a rank.

    Raises:
        OSError: if it cannot be opened.
        ValueError: if it is no file of a rank, or not yet.
        TypeError: if a fact in it has another type.
    """
    reader = READERS[_suffix(path.name)](path)
    header = reader.header
    integers = (header.pid, header.started, header.rank, header.ranks)
    if not all(type(integer) is int for integer in integers) or type(header.job) is not str:
        raise ValueError(f"{path}: expected integers and the name of a job in the header")
    if not 0 < header.pid < _LARGEST_PID or not -1 < header.rank < _LARGEST_PID:
        raise ValueError(f"{path}: expected the numbers of a process and of a rank in the header")
    return reader


def _suffix(name: str) -> str:
    return "" if name.startswith(".") else os.path.splitext(name)[1]  # noqa: PTH122 - thousands of names, no paths


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False
