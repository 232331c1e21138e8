"""Folders that processes of one user and node share: in memory if possible, and open to this user alone."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the folder in it is checked to be ours


def shared_folder(remedy: str = "") -> Path:
    """Return the folder of this user, made if missing.

    Args:
        remedy: end of the sentence about a folder of another user.

    Raises:
        OSError: if it cannot be made, or if it belongs to another user.
    """
    # In memory if possible: a page of a disk's file blocks the thread that stores into it while the disk writes it.
    above = _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())
    return private(above / f"probe-{os.getuid()}", remedy)


def private(folder: Path, remedy: str = "") -> Path:
    """Return ``folder``, made if missing and open to this user alone.

    Raises:
        OSError: if it cannot be made, or if it belongs to another user.
    """
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise PermissionError(
            f"{folder}: expected a directory of the user {os.getuid()}, got one of {status.st_uid} or no directory: "
            f"remove it{remedy}"
        )
    if stat.S_IMODE(status.st_mode) != 0o700:
        folder.chmod(0o700)
    return folder


def digest(names: Sequence[str]) -> str:
    """Return a name for a folder of the processes that ``names`` describe and that see each other."""
    parts = [*names]
    # Containers may share this memory, and with it names of files, though neither sees the processes of the other.
    with suppress(OSError):
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    return hashlib.sha256("\0".join(parts).encode("utf-8", "replace")).hexdigest()[:16]
