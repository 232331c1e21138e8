"""Copy of what was fetched from object storage, in files without names, which the processes of a machine share.

The files belong to the process that made the copy, and are gone with the last process that has them open, however it
ends. Other processes open them by ``/proc``; where that is missing, each process has a copy of its own.
"""

from __future__ import annotations

import json
import logging
import os
import struct
import tempfile
import threading
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import ENOSPC
from typing import NamedTuple

from probe.core.process_identity import boot

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_log = logging.getLogger(__name__)

LOCKS = 128
"""Parts that can be fetched at the same time; those that share a lock take turns."""
AT_ONCE = 1 << 24
"""Bytes of a write."""
MOST_HELD = 384 << 20
"""Bytes of parts that are held in memory where the disk has no space, but the latest one in any case: two of the
largest parts, which are read in turns."""
APPEND = 0
"""Place of the lock for new parts; those of the parts follow."""

Identity = tuple[int, int]
"""Device and number of a file."""


class CopyAddress(NamedTuple):
    """Address of a copy for the other processes of a machine."""

    machine: str
    """Identifier of this start of the machine."""
    process: int
    files: tuple[tuple[int, Identity], ...]
    """Descriptor and identity of the data and of the index."""


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
        address: that of a copy which another process has made; one of another machine is left alone.
    """

    def __init__(self, address: CopyAddress | None = None) -> None:
        self._parts: dict[tuple[str, int], tuple[int, int]] = {}
        self._objects: dict[str, ListedObject] = {}
        self._lock = threading.RLock()
        self._busy = [threading.Lock() for _ in range(LOCKS)]
        self._indexed = 0
        self._held: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        """Parts for which the disk has no space; the one that was read last is the last."""
        opened = _opened(address) if address else None
        self._data, self._index = opened or (_unnamed(), _unnamed())
        self._address = address if opened else _address(self._data, self._index)

    def __del__(self) -> None:
        for descriptor in (getattr(self, "_data", None), getattr(self, "_index", None)):
            if descriptor is not None:
                with suppress(OSError):
                    os.close(descriptor)

    @property
    def address(self) -> CopyAddress | None:
        """Address of this copy for other processes; None if they cannot open it."""
        return self._address

    def object(self, url: str) -> ListedObject | None:
        """Return what is known of an object of which a part was fetched; None if none was."""
        with self._lock:
            self._learn()
            return self._objects.get(url)

    def has(self, url: str, begin: int) -> bool:
        """Return whether a part was fetched, by whichever process."""
        return self._place(url, begin) is not None

    def read(self, url: str, begin: int, at: int, size: int) -> bytes | None:
        """Return bytes of a part, fewer if it ends before; None if it was not fetched.

        Args:
            begin: first byte of the part.
            at: first byte that is wanted, in the object.
            size: how many.

        Raises:
            OSError: if the disk fails.
        """
        found = self._place(url, begin)
        if found is None:
            return self._read_held(url, begin, at, size)
        place, length = found
        return os.pread(self._data, min(size, begin + length - at), place + at - begin)

    @contextmanager
    def alone(self, url: str, begin: int) -> Iterator[None]:
        """Let no other thread or process be in a block of the same part."""
        number = zlib.crc32(f"{begin} {url}".encode()) % LOCKS
        with self._busy[number], self._locked(1 + number):
            yield

    @property
    def is_full(self) -> bool:
        """True if the disk had no space for a part."""
        return bool(self._held)

    def keep(self, url: str, about: ListedObject, begin: int, data: bytes) -> None:
        """Append a part of an object to the copy; hold it in memory if the disk has no space for it."""
        with self._lock:
            try:
                self._append(url, about, begin, data)
            except OSError as error:
                self._hold(url, begin, data, error)

    def _append(self, url: str, about: ListedObject, begin: int, data: bytes) -> None:
        with self._locked(APPEND):
            place = os.fstat(self._data).st_size
            os.ftruncate(self._data, place + len(data))
        view, at = memoryview(data), place
        while view:
            written = os.pwrite(self._data, view[:AT_ONCE], at)
            view, at = view[written:], at + written
        entry = json.dumps([url, about, begin, place, len(data)]).encode() + b"\n"
        with self._locked(APPEND):
            end = os.fstat(self._index).st_size
            if os.pwrite(self._index, entry, end) < len(entry):
                os.ftruncate(self._index, end)
                raise OSError(ENOSPC, os.strerror(ENOSPC))

    def _hold(self, url: str, begin: int, data: bytes, error: OSError) -> None:
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

    def _read_held(self, url: str, begin: int, at: int, size: int) -> bytes | None:
        with self._lock:
            data = self._held.get((url, begin))
            if data is not None:
                self._held.move_to_end((url, begin))
        return None if data is None else data[at - begin : at - begin + size]

    def _place(self, url: str, begin: int) -> tuple[int, int] | None:
        """Return place and length of a part in the data."""
        with self._lock:
            if (url, begin) not in self._parts:
                self._learn()
            return self._parts.get((url, begin))

    def _learn(self) -> None:
        """Read what was added to the index, by whichever process."""
        with self._locked(APPEND):
            added = os.pread(self._index, os.fstat(self._index).st_size - self._indexed, self._indexed)
        self._indexed += len(added)
        for line in added.splitlines():
            url, about, begin, place, length = json.loads(line)
            self._parts[url, begin] = place, length
            self._objects[url] = ListedObject(*about)

    @contextmanager
    def _locked(self, number: int) -> Iterator[None]:
        """Hold a lock that excludes other processes; their system takes it from those that end."""
        if self._address is None:
            yield
            return
        _lock(self._index, number, fcntl.F_WRLCK)
        try:
            yield
        finally:
            _lock(self._index, number, fcntl.F_UNLCK)


def _lock(descriptor: int, number: int, kind: int) -> None:
    """Set or release the lock of one byte, for this opening of the file: threads and forks share it."""
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLKW, struct.pack("hhqqi4x", kind, os.SEEK_SET, number, 1, 0))


def _unnamed() -> int:
    with tempfile.TemporaryFile(prefix="probe-") as file:
        return os.dup(file.fileno())


def _machine() -> str:
    """Identifier of this start of the machine; empty where there is none, or no locks."""
    if not hasattr(fcntl, "F_OFD_SETLKW"):
        return ""
    return boot()


def _identity(descriptor: int) -> Identity:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _address(data: int, index: int) -> CopyAddress | None:
    machine = _machine()
    files = ((data, _identity(data)), (index, _identity(index)))
    address = CopyAddress(machine, os.getpid(), files)
    again = _opened(address) if machine else None
    for descriptor in again or ():
        os.close(descriptor)
    return address if again else None


def _opened(address: CopyAddress) -> tuple[int, int] | None:
    """Return descriptors of data and index; None if they cannot be opened, or are others by now."""
    if address.machine != _machine():
        return None
    found: list[int] = []
    for descriptor, identity in address.files:
        with suppress(OSError):
            found.append(os.open(f"/proc/{address.process}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC))
            if _identity(found[-1]) == identity:
                continue
        break
    else:
        return found[0], found[1]
    for descriptor in found:
        os.close(descriptor)
    return None
