"""File system that DuckDB reads locations through: names are exact, and what was read once is not fetched again."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from fsspec.spec import AbstractFileSystem

from probe.core.storage.location import Location
from probe.core.storage.object_store import Store, stores
from probe.core.storage.sql import unescaped


class DuckdbFiles(AbstractFileSystem):  # type: ignore[misc] # fsspec has no types
    """Objects of all stores in use, by URL.

    Args:
        protocol: scheme of the URLs, such as ``s3``.
    """

    cachable = False

    def __init__(self, protocol: str) -> None:
        super().__init__()
        self.protocol = protocol

    def unstrip_protocol(self, name: str) -> str:
        """Return ``name``, which is a URL."""
        return name

    def glob(self, path: str, **_: Any) -> list[str]:
        """Return the one name that ``path``, a pattern that :mod:`probe.core.storage.sql` has made, stands for."""
        return [unescaped(path)]

    def open(self, path: str, mode: str = "rb", **_: Any) -> Any:
        return _found(path).open(mode)

    def exists(self, path: str, **_: Any) -> bool:
        return _found(path).is_file()

    isfile = exists

    def isdir(self, path: str) -> bool:
        return _found(path).is_dir()

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Return name, size and kind."""
        return {"name": path, "size": _found(path).stat().st_size, "type": "file"}

    def size(self, path: str) -> int:
        return _found(path).stat().st_size

    def modified(self, path: str) -> datetime:
        return datetime.fromtimestamp(_found(path).stat().st_mtime, timezone.utc)


def register(connection: Any, store: Store) -> None:
    """Let ``connection`` open the URLs of ``store``."""
    protocol = store.root.partition("://")[0]
    if protocol not in connection.list_filesystems():
        connection.register_filesystem(DuckdbFiles(protocol))


def _found(url: str) -> Location:
    """Return the location of ``url`` in the newest store that knows it.

    Raises:
        FileNotFoundError: if none does.
    """
    for store in stores():
        if f"{url}/".startswith(f"{store.root}/") and (entry := store.entry(url)):
            return Location(url, store, entry)
    raise FileNotFoundError(2, "expected an object of a run that is open", url)
