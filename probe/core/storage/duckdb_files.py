"""File system that DuckDB reads locations through: names are exact, and what was read once is not fetched again."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

from fsspec.spec import AbstractFileSystem

from probe.core.storage.sql import unescaped


class DuckdbFiles(AbstractFileSystem):  # type: ignore[misc] # fsspec has no types
    """Objects of all stores in use, by URL.

    Args:
        protocol: scheme of the URLs, such as ``s3``.
        found: returns the location of a URL.
    """

    cachable = False

    def __init__(self, protocol: str, found: Callable[[str], Any]) -> None:
        super().__init__()
        self.protocol, self._found = protocol, found

    def unstrip_protocol(self, name: str) -> str:
        """Return ``name``, which is a URL."""
        return name

    def glob(self, path: str, **_: Any) -> list[str]:
        """Return the one name that ``path``, a pattern that :mod:`probe.core.storage.sql` has made, stands for."""
        return [unescaped(path)]

    def open(self, path: str, mode: str = "rb", **_: Any) -> Any:
        return self._found(path).open(mode)

    def exists(self, path: str, **_: Any) -> bool:
        return bool(self._found(path).is_file())

    isfile = exists

    def isdir(self, path: str) -> bool:
        return bool(self._found(path).is_dir())

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Return name, size and kind."""
        return {"name": path, "size": self._found(path).stat().st_size, "type": "file"}

    def size(self, path: str) -> int:
        return int(self._found(path).stat().st_size)

    def modified(self, path: str) -> datetime:
        return datetime.fromtimestamp(self._found(path).stat().st_mtime, timezone.utc)


def register(connection: Any, protocol: str, found: Callable[[str], Any]) -> None:
    """Let ``connection`` open the URLs of a scheme."""
    if protocol not in connection.list_filesystems():
        connection.register_filesystem(DuckdbFiles(protocol, found))
