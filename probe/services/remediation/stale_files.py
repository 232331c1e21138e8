"""Removal of old files below a folder: never a checkpoint, an open file, a linked one, or anything outside.

Every folder is opened by its name within the one above it and without following symbolic links, and every file is
examined and removed through its folder: no path is resolved twice.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

DEEPEST = 32
"""Levels of folders that are entered at most: one open descriptor each."""
OPEN_SECONDS = 2.0
"""Age in seconds beyond which the list of open files is made again."""
MOST_LISTED = 20
"""Removed files that a summary names."""

ENDINGS = frozenset(
    {
        "pt",
        "pth",
        "pt2",
        "ckpt",
        "safetensors",
        "distcp",
        "bin",
        "gguf",
        "ggml",
        "onnx",
        "h5",
        "hdf5",
        "keras",
        "mindir",
    }
    | {"orbax", "tensorstore", "zarr", "msgpack", "pkl", "pickle", "joblib", "npz", "nemo", "tar"}
)
"""Endings of files that may be checkpoints, archives of them included."""
_NAMES = re.compile(
    r"checkpoint|ckpt|snapshot|global_?step|(?:^|[^a-z])iter_?\d|(?:^|[^a-z])epoch[_=-]?\d|(?:^|[^a-z])step[_=-]?\d"
    r"|mp_rank_|zero_pp_rank|model_(?:optim_)?rng|model_world_size|distrib_optim|optim(?:izer)?_states?|rng_state"
    r"|^(?:pytorch_model|adapter_model|model|consolidated)(?:[.\-_]|$)"
    r"|^latest(?:_|$|\.)|^\.metadata|^trainer_state\.|^zero_to_fp32|^meta_model_",
    re.IGNORECASE,
)
"""Names of checkpoints, their folders and parts, as trainers write them."""
MARKS = re.compile(
    r"^\.metadata$|\.distcp$|^trainer_state\.json$|^(?:pytorch_)?model\b.*\.(?:index\.json|safetensors|bin)$|^mp_rank_\d",
    re.IGNORECASE,
)
"""Names of files that make the folder around them, with everything below, a checkpoint."""


def may_be_checkpoint(name: str) -> bool:
    """Return whether a file or folder called ``name`` may be a checkpoint or a part of one, half written or not:
    ``model.pt.tmp`` is one too."""
    return bool(_NAMES.search(name)) or any(piece in ENDINGS for piece in name.lower().split(".")[1:])


class OpenFiles(NamedTuple):
    """Files that processes of this machine have open or mapped."""

    inodes: frozenset[tuple[int, int]]
    """Device and inode of each."""
    unseen: int
    """Processes that do not show theirs: those of other users."""
    made: float
    """Time at which this was found, by the monotonic clock."""


def open_files() -> OpenFiles:
    """Find all open files.

    Raises:
        OSError: if this system has no /proc.
    """
    inodes, unseen = set[tuple[int, int]](), 0
    for process in (folder for folder in Path("/proc").iterdir() if folder.name.isdecimal()):
        try:
            inodes |= set(_open_in(process))
        except PermissionError:
            unseen += 1
        except OSError:  # it has ended
            continue
    return OpenFiles(frozenset(inodes), unseen, time.monotonic())


def _open_in(process: Path) -> Iterator[tuple[int, int]]:
    for descriptor in (process / "fd").iterdir():
        with suppress(FileNotFoundError):
            status = descriptor.stat()
            yield status.st_dev, status.st_ino
    with suppress(ProcessLookupError, FileNotFoundError), (process / "maps").open("rb") as maps:
        for line in maps:
            _, _, _, device, inode, *_ = line.split(maxsplit=5)
            if inode != b"0":
                major, minor = device.split(b":")
                yield os.makedev(int(major, 16), int(minor, 16)), int(inode)


@dataclass
class Removal:
    """Result of a removal, or of its rehearsal."""

    files: int = 0
    size: int = 0
    """Bytes."""
    listed: list[str] = field(default_factory=list)
    """Some of the paths."""
    spared: Counter[str] = field(default_factory=Counter)
    """Numbers of files and folders that match and stay, by the reason."""
    unseen: int = 0
    """Processes whose open files cannot be seen."""
    full: bool = False
    """True if more files could have been removed than is permitted at one time."""


class StaleFiles(NamedTuple):
    """Rule that says which files are removed."""

    folder: Path
    """Absolute path without symbolic links."""
    patterns: Sequence[str]
    """Patterns of names."""
    keep: Sequence[str]
    """Patterns of names that stay."""
    seconds: float
    """Least time since the file was last read or written."""


class StaleFileRemover:
    """Walk through folders that removes what is stale.

    Args:
        live: false to remove nothing and count what would be.
        most: most files.
        check: function that is called before each file and raises to end the walk.
    """

    def __init__(self, live: bool, most: int, check: Callable[[], None]) -> None:
        self._live, self._most, self._check = live, most, check
        self._open = open_files()
        self._user = os.geteuid()
        self.result = Removal(unseen=self._open.unseen)

    def clean(self, rule: StaleFiles) -> None:
        """Remove the stale files below ``rule.folder``.

        Raises:
            OSError: if the folder cannot be opened, or lies elsewhere than it did when the service began.
        """
        if rule.folder.resolve() != rule.folder:
            raise OSError(f"{rule.folder}: expected a folder without symbolic links in its path")
        descriptor = os.open(rule.folder, _FOLDER)
        try:
            self._enter(rule, descriptor, rule.folder, os.fstat(descriptor).st_dev, 0)
        finally:
            os.close(descriptor)

    def _enter(self, rule: StaleFiles, folder: int, path: Path, device: int, depth: int) -> None:
        """Remove files of one folder, and enter those in it."""
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries)
        if any(MARKS.search(name) for name in names):
            self.result.spared["checkpoint"] += 1
            return
        for name in names:
            if self.result.full:
                return
            self._check()
            try:
                status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            except OSError:  # it has gone
                continue
            if stat.S_ISDIR(status.st_mode):
                self._descend(rule, folder, name, path, device, depth)
            elif any(fnmatchcase(name, pattern) for pattern in rule.patterns):
                self._consider(rule, folder, name, path, status, device)

    def _descend(self, rule: StaleFiles, above: int, name: str, path: Path, device: int, depth: int) -> None:
        if may_be_checkpoint(name):
            self.result.spared["checkpoint"] += 1
            return
        if depth >= DEEPEST:
            self.result.spared["too deep"] += 1
            return
        try:
            descriptor = os.open(name, _FOLDER, dir_fd=above)
        except OSError:  # no rights; or it has gone, or is a link now
            self.result.spared["not readable"] += 1
            return
        try:
            if os.fstat(descriptor).st_dev != device:
                self.result.spared["other file system"] += 1
                return
            self._enter(rule, descriptor, path / name, device, depth + 1)
        finally:
            os.close(descriptor)

    def _consider(
        self, rule: StaleFiles, folder: int, name: str, path: Path, status: os.stat_result, device: int
    ) -> None:
        """Remove a file unless there is a reason to spare it."""
        reason = self._reason(rule, name, status, device)
        if reason:
            self.result.spared[reason] += 1
            return
        if self.result.files >= self._most:
            self.result.full = True
            return
        if self._live:
            try:
                os.unlink(name, dir_fd=folder)
            except OSError as error:
                self.result.spared[(error.strerror or "not removable").lower()] += 1
                return
        self.result.files += 1
        self.result.size += status.st_blocks * 512
        if len(self.result.listed) < MOST_LISTED:
            self.result.listed.append(str(path / name))

    def _reason(self, rule: StaleFiles, name: str, status: os.stat_result, device: int) -> str:
        """Return the reason for which a file stays; empty if there is none."""
        reasons = (
            ("no regular file", not stat.S_ISREG(status.st_mode)),
            ("checkpoint", may_be_checkpoint(name)),
            ("kept", any(fnmatchcase(name, pattern) for pattern in rule.keep)),
            ("hard link", status.st_nlink > 1),  # another name of it may be a checkpoint, and its space stays in use
            ("other file system", status.st_dev != device),
            ("young", time.time() - max(status.st_mtime, status.st_atime) < rule.seconds),
        )
        return next((reason for reason, holds in reasons if holds), "") or self._use_of(status)

    def _use_of(self, status: os.stat_result) -> str:
        if time.monotonic() - self._open.made > OPEN_SECONDS:
            self._open = open_files()
            self.result.unseen = max(self.result.unseen, self._open.unseen)
        if (status.st_dev, status.st_ino) in self._open.inodes:
            return "open"
        is_private = status.st_uid == self._user and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        return "perhaps open" if self._open.unseen and not is_private else ""


_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
