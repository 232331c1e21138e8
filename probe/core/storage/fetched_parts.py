"""Copy of what was fetched from object storage: a folder with a file for each part, which processes share.

The folder belongs to the process that has listed the run and is removed at its end; what a killed process leaves is
removed by the next that makes one.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
import threading
import weakref
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_log = logging.getLogger(__name__)

PREFIX = "probe-parts-"
OWNER = "owner"
"""File of a folder that its process holds locked."""
LOCKS = 128
"""Parts that can be fetched at the same time; those that share a lock take turns."""
HEADER = 256
"""Bytes before those of a part, with what is known of its object."""
MOST_HELD = 384 << 20
"""Bytes of parts that are held in memory where the disk has no space, but the latest one in any case: two of the
largest parts, which are read in turns."""


class ListedObject(NamedTuple):
    """An object as listed."""

    size: int
    modified: float
    """Seconds since the epoch."""
    version: str
    """ETag, or empty where the storage has none."""


class FetchedParts:
    """Parts of objects by URL and first byte, and what is known of these objects.

    Args:
        folder: that of another process; where it cannot be opened, as on another machine, a new one is made.
    """

    def __init__(self, folder: str = "") -> None:
        shared = bool(folder) and (Path(folder) / OWNER).is_file()
        self.folder = folder if shared else _made(self)
        self._lock = threading.RLock()
        self._held: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        """Parts for which the disk has no space; the one that was read last is the last."""

    def object(self, url: str) -> ListedObject | None:
        """Return what is known of an object of which a part was fetched; None if none was."""
        with suppress(OSError), self._path(url).open("rb") as file:
            return ListedObject(*json.loads(file.read(HEADER)))
        return None

    def has(self, url: str, begin: int) -> bool:
        """Return whether a part was fetched, by whichever process."""
        return (url, begin) in self._held or self._path(url, begin).exists()

    def read(self, url: str, begin: int, at: int, size: int) -> bytes | None:
        """Return bytes of a part, fewer if it ends before; None if it was not fetched.

        Args:
            begin: first byte of the part.
            at: first byte that is wanted, in the object.
            size: how many.

        Raises:
            OSError: if the disk fails.
        """
        with self._lock:
            if data := self._held.get((url, begin)):
                self._held.move_to_end((url, begin))
                return data[at - begin : at - begin + size]
        try:
            with self._path(url, begin).open("rb", buffering=0) as file:
                file.seek(HEADER + at - begin)
                return file.read(size)
        except FileNotFoundError:
            return None

    @contextmanager
    def alone(self, url: str, begin: int) -> Iterator[None]:
        """Let no other thread or process be in a block of the same part."""
        lock = self._path(f"{zlib.crc32(f'{begin} {url}'.encode()) % LOCKS}.lock")
        with ExitStack() as locks:
            with suppress(OSError):  # without it a part may be fetched twice
                _lock(locks.enter_context(lock.open("ab")).fileno())
            yield

    @property
    def is_full(self) -> bool:
        """True if the disk had no space for a part."""
        return bool(self._held)

    def keep(self, url: str, entry: ListedObject, begin: int, data: bytes) -> None:
        """Add a part of an object to the copy; hold it in memory if the disk has no space for it."""
        path = self._path(url, begin)
        temporary = path.with_suffix(f".{os.getpid()}.{threading.get_ident()}.tmp")
        try:
            with temporary.open("wb") as file:
                file.write(json.dumps(entry).encode().ljust(HEADER))
                file.write(data)
            temporary.replace(path)
            with suppress(FileExistsError):
                self._path(url).hardlink_to(path)
        except OSError as error:
            with suppress(OSError):
                temporary.unlink()
            self._hold(url, begin, data, error)

    def _hold(self, url: str, begin: int, data: bytes, error: OSError) -> None:
        with self._lock:
            if not self._held:
                _log.warning(
                    "no space for what is fetched: folder=%s error=%s; parts are held in memory, and fetched again if "
                    "there are many; set TMPDIR to a folder with space",
                    tempfile.gettempdir(),
                    error.strerror,
                )
            self._held[url, begin] = data
            size = sum(map(len, self._held.values()))
            while size > MOST_HELD and len(self._held) > 1:
                size -= len(self._held.popitem(last=False)[1])

    def _path(self, url: str, begin: int | None = None) -> Path:
        """Return the path of a part; without ``begin`` that of any part of the object."""
        return Path(self.folder, hashlib.sha1(f"{begin} {url}".encode(), usedforsecurity=False).hexdigest())


def _made(parts: FetchedParts) -> str:
    """Make a folder that is removed with ``parts``, by the process that made it; remove those of killed processes."""
    for owner in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{OWNER}"):
        with suppress(OSError), owner.open("ab") as file:
            _lock(file.fileno(), waits=False)
            shutil.rmtree(owner.parent, ignore_errors=True)
    folder = tempfile.mkdtemp(prefix=PREFIX)
    descriptor = os.open(f"{folder}/new", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    _lock(descriptor)
    Path(folder, "new").replace(Path(folder, OWNER))
    weakref.finalize(parts, _remove, folder, descriptor, os.getpid())
    return folder


def _remove(folder: str, descriptor: int, process: int) -> None:
    os.close(descriptor)
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


def _lock(descriptor: int, waits: bool = True) -> None:
    """Lock a file for this opening of it.

    Raises:
        OSError: if it is locked, and this does not wait, or the system has no such locks.
    """
    if fcntl is None:
        if not waits:
            raise OSError("no locks of files")
        return
    fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
