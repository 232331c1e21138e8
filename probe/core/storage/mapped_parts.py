"""Parts of a mapped file, each rewritten by one process and read by another.

The writer stores into memory: it takes no lock and makes no system call. A reader notices by a checksum that it has
read a part of which only a piece is new, and reads again.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import stat
import struct
import tempfile
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from probe.core.storage.files import FileView

PART = struct.Struct("<QII")
"""Generation of a part, its bytes, checksum of these and of the generation."""
TRIES = 100
"""Attempts to read a part that is being rewritten."""
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the folder in it is checked to be ours


def mapped(path: Path, size: int, text: bytes) -> mmap.mmap:
    """Make the file ``path``, which begins with ``text``, and map it.

    Raises:
        OSError: if it cannot be made, or exists.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        # Every page is there before it is mapped: a store into one for which a full disk has no room ends the process.
        os.posix_fallocate(descriptor, 0, size)
        os.pwrite(descriptor, text, 0)
        return mmap.mmap(descriptor, size)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)


def put(view: mmap.mmap, at: int, generation: int, data: bytes) -> None:
    """Replace the part at ``at``."""
    view[at + PART.size : at + PART.size + len(data)] = data
    PART.pack_into(view, at, generation, len(data), checksum(generation, data))


def part(file: FileView, at: int) -> tuple[int, bytes] | None:
    """Return the generation and the bytes of the part at ``at``; None if only a piece of it is new, or the file was cut
    short."""
    head = file.read(at, PART.size)
    if len(head) < PART.size:
        return None
    generation, size, expected = PART.unpack(head)
    data = file.read(at + PART.size, size)
    return (generation, data) if len(data) == size and checksum(generation, data) == expected else None


def checksum(generation: int, data: bytes) -> int:
    """Return the checksum of a part."""
    return zlib.crc32(data, generation & 0xFFFF_FFFF)


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
