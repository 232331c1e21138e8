"""File system that DuckDB reads locations through: names are exact, and what was read once is not fetched again."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

from fsspec.spec import AbstractFileSystem

from probe.core.storage.sql import unescaped


class OpenObject:
    """Object that threads of DuckDB read at the same time. A thread seeks, then reads, and another one may come in
    between: so a position holds for the next reading of its own thread. A reading without one goes on after the last
    reading, by whichever thread.

    Args:
        location: a :class:`~probe.core.storage.location.Location`.
    """

    def __init__(self, location: Any) -> None:
        self._location, self._size = location, location.stat().st_size
        self._at = 0
        self._sought = threading.local()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position of the next reading of this thread; return it."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self.tell(), io.SEEK_END: self._size}[whence]
        self._sought.at = max(0, start + offset)
        return self.tell()

    def tell(self) -> int:
        """Return the position of the next reading of this thread."""
        at: int | None = getattr(self._sought, "at", None)
        return self._at if at is None else at

    def read(self, size: int = -1) -> bytes:
        """Return ``size`` bytes, fewer at the end of the object; all that are left if it is negative."""
        at = self.tell()
        data = self._location.read_at(at, self._size - at if size < 0 else size)
        self._sought.at, self._at = None, at + len(data)
        return bytes(data)

    def close(self) -> None:
        """Do nothing: no descriptor is open."""


class DuckdbFiles(AbstractFileSystem):  # type: ignore[misc] # fsspec has no types
    """Objects of all stores in use, by URL.

    Args:
        protocol: scheme of the URLs, such as ``s3``.
        found: returns the location of a URL.
    """

    cachable = False

    def __init__(self, protocol: str, find: Callable[[str], Any]) -> None:
        super().__init__()
        self.protocol, self._found = protocol, find

    def unstrip_protocol(self, name: str) -> str:
        """Return ``name``, which is a URL."""
        return name

    def glob(self, path: str, **_: Any) -> list[str]:
        """Return the one name that ``path``, a pattern that :mod:`probe.core.storage.sql` has made, stands for."""
        return [unescaped(path)]

    def open(self, path: str, mode: str = "rb", **_: Any) -> Any:
        assert mode == "rb", "locations are read only"
        return OpenObject(self._found(path))

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Return name, size and kind."""
        return {"name": path, "size": self._found(path).stat().st_size, "type": "file"}

    def modified(self, path: str) -> datetime:
        return datetime.fromtimestamp(self._found(path).stat().st_mtime, timezone.utc)


def register(connection: Any, protocol: str, find: Callable[[str], Any]) -> None:
    """Let ``connection`` open the URLs of a scheme."""
    if protocol not in connection.list_filesystems():
        connection.register_filesystem(DuckdbFiles(protocol, find))
