"""Places from which runs are read: a path of this machine, or a location in object storage (``s3://bucket/run``).

A :class:`Location` has the part of :class:`pathlib.Path` that the readers use. Writers take paths only.

The ``universal-pathlib`` package serves the same purpose and was not chosen: each of its paths looks up size and kind
with a request of its own, its pickles carry the options of the file system (credentials among them), and its ``glob``
goes through patterns in which ``[``, ``*`` and ``?`` of a name have to be escaped. Here all locations of a run share
one listing (:mod:`probe.core.storage.object_store`), a pickle has the URL, the size and the version, and names are
compared as they are: ``%41`` stays ``%41``.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import total_ordering
from io import BufferedReader
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, TypeAlias

from probe.core.language import invalid
from probe.core.storage.fetched_parts import ListedObject
from probe.core.storage.object_store import LocationError, ObjectStore, PartSizes, new_store, store_of, stores

MARK = "://"
"""Text that distinguishes a URL from a path."""
BUFFER = 1 << 16
"""Bytes that are read at a time from the copy of an object."""


class Stat(NamedTuple):
    """Size and time of an object; of a folder the time of its latest object."""

    st_size: int
    st_mtime: float
    """Seconds since the epoch."""

    @property
    def st_mtime_ns(self) -> int:
        return int(self.st_mtime * 1e9)


@total_ordering
@dataclass(frozen=True, eq=False)
class Location:
    """Object or folder in object storage; :func:`located` makes the first one of a run, and ``/`` those in it.

    Two locations are equal if their URLs are.
    """

    url: str
    """URL without credentials and without a slash at its end."""
    store: ObjectStore = field(repr=False)
    entry: ListedObject | None = field(default=None, repr=False)
    """Size, time and version as listed; None if it is not listed yet, or is a folder."""

    def __str__(self) -> str:
        return self.url

    def __eq__(self, other: object) -> bool:
        return self.url == other.url if isinstance(other, Location) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.url)

    def __lt__(self, other: object) -> bool:
        return self.parts < other.parts if isinstance(other, Location) else NotImplemented

    def __reduce__(self) -> tuple[Any, ...]:
        entry = self.entry or self.store.known(self.url)
        store = self.store
        return _restored, (self.url, store.root, store.token, tuple(store.sizes), store.copy, entry)

    @property
    def parts(self) -> tuple[str, ...]:
        scheme, _, rest = self.url.partition(MARK)
        bucket, *names = rest.split("/")
        return (f"{scheme}{MARK}{bucket}", *names)

    @property
    def name(self) -> str:
        """The last part; that of a bucket is the bucket's."""
        return self.url.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.name).suffix

    @property
    def stem(self) -> str:
        return PurePosixPath(self.name).stem

    @property
    def parent(self) -> Location:
        """The folder; a bucket is its own."""
        return self._at(self.url.rpartition("/")[0]) if len(self.parts) > 1 else self

    def __truediv__(self, name: str) -> Location:
        return self._at(f"{self.url}/{name}".rstrip("/"))

    def with_name(self, name: str) -> Location:
        """Return the location of another name in the same folder."""
        return self.parent / name

    def of_size(self, size: int) -> Location:
        """Return the location of an object whose size is known without a listing, so that none is asked for it."""
        self.store.learn(self.url, ListedObject(size, 0.0, ""))
        return self

    def is_dir(self) -> bool:
        return self.store.is_folder(self.url)

    def is_file(self) -> bool:
        return self.entry is not None or self.store.entry(self.url) is not None

    def exists(self) -> bool:
        return self.is_file() or self.is_dir()

    def iterdir(self) -> Iterator[Location]:
        """Yield what is in the folder, in the order of names.

        Raises:
            OSError: if there is no such folder, or it cannot be listed.
        """
        if not self.is_dir():
            raise FileNotFoundError(2, "No such folder", self.url)
        for name in sorted(self.store.names(self.url)):
            yield self / name

    def glob(self, pattern: str) -> Iterator[Location]:
        """Yield what is in the folder and has a name that fits ``pattern``; nothing if there is no such folder."""
        assert "/" not in pattern, "patterns of one name"
        if self.is_dir():
            yield from (place for place in self.iterdir() if fnmatchcase(place.name, pattern))

    def stat(self) -> Stat:
        """Return size and time as listed.

        Raises:
            OSError: if there is nothing of this name, or it cannot be listed.
        """
        entry = self._entry()
        if entry is None:
            if not self.is_dir():
                raise FileNotFoundError(2, "No such object", self.url)
            inside = (self.store.entry(f"{self.url}/{name}") for name in self.store.names(self.url))
            return Stat(0, max((item.modified for item in inside if item), default=0.0))
        return Stat(entry.size, entry.modified)

    def open(self, mode: str = "rb") -> BufferedReader:
        """Open the object for reading bytes; each part of it is fetched once.

        Raises:
            OSError: if there is no such object, or it cannot be read.
        """
        assert mode == "rb", "locations are read only"
        return io.BufferedReader(_ObjectReader(self, self._listed()), BUFFER)

    def read_at(self, at: int, size: int) -> bytes:
        """Return ``size`` bytes from ``at`` on, fewer at the end of the object; threads may call it at the same time.

        Raises:
            OSError: if there is no such object, or it cannot be read.
        """
        entry, end = self._listed(), at + size
        parts: list[bytes] = []
        while at < end and (data := self.store.read(self.url, entry, at, end - at)):
            parts.append(data)
            at += len(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read_bytes(self) -> bytes:
        with self.open() as file:
            return file.read()

    def read_text(self, encoding: str = "utf-8") -> str:
        """Return the text of the object, with its line breaks as :meth:`pathlib.Path.read_text` returns them."""
        with io.TextIOWrapper(self.open(), encoding=encoding) as file:
            return file.read()

    def expanduser(self) -> Location:
        return self

    def resolve(self) -> Location:
        return self

    def absolute(self) -> Location:
        return self

    def relative_to(self, other: Location) -> PurePosixPath:
        """Return the path from ``other`` to this location.

        Raises:
            ValueError: if it is not in ``other``.
        """
        if self != other and not self.url.startswith(f"{other.url}/"):
            raise ValueError(f"{self}: expected a location in {other}")
        return PurePosixPath(self.url[len(other.url) + 1 :])

    def _at(self, url: str) -> Location:
        return Location(url, self.store, self.store.known(url))

    def _listed(self) -> ListedObject:
        """Return the entry of the object.

        Raises:
            OSError: if there is no such object.
        """
        entry = self._entry()
        if entry is None:
            if self.is_dir():
                raise IsADirectoryError(21, "expected a file; this is a directory", self.url)
            raise FileNotFoundError(2, "No such object", self.url)
        return entry

    def _entry(self) -> ListedObject | None:
        return self.entry or self.store.entry(self.url)


Place: TypeAlias = Path | Location
"""Folder or file of a run."""


class _ObjectReader(io.RawIOBase):
    """Bytes of an object by position."""

    def __init__(self, location: Location, entry: ListedObject) -> None:
        self._location, self._size, self._at = location, entry.size, 0
        self._entry = entry

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = max(0, offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence])
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, target: Any) -> int:
        data = self._location.store.read(self._location.url, self._entry, self._at, len(target))
        target[: len(data)] = data
        self._at += len(data)
        return len(data)


def located(text: str | Path | Location) -> Place:
    """Return the place that a user has named: a URL (``s3://bucket/run``) is a :class:`Location`, other text is a path.

    Locations that are made from the result share its listing and what was read; call this once for an analysis.

    Raises:
        ValueError: if the URL is of an unknown kind, has credentials in it, or names no bucket.
    """
    if isinstance(text, Location):
        return text
    if isinstance(text, Path) or MARK not in text:
        return Path(text)
    store = new_store(text)
    return Location(store.root, store)


def contents(folder: Place, pattern: str = "") -> list[Place]:
    """Return what is in ``folder``, in the order of names.

    Args:
        pattern: pattern of the names; with it, a folder that is missing or cannot be listed has nothing.

    Raises:
        OSError: if there is no such folder, or it cannot be listed.
    """
    places: Iterable[Place] = folder.glob(pattern) if pattern else folder.iterdir()
    return sorted(places, key=lambda place: place.name)


def on_disk(place: Place) -> Path:
    """Return ``place`` as a path.

    Raises:
        ValueError: if it is a location, to which nothing is written.
    """
    if isinstance(place, Location):
        raise invalid("{place}: expected a path of this machine; nothing is written to object storage", place=place)
    return place


def fetch_ahead(places: Iterable[Place]) -> None:
    """Fetch the objects that are small enough to be read as a whole, many at a time; paths are left as they are. What
    cannot be fetched is an error once it is opened."""
    by_store: dict[ObjectStore, list[str]] = {}
    for place in places:
        if isinstance(place, Location):
            by_store.setdefault(place.store, []).append(place.url)
    for store, urls in by_store.items():
        store.fetch_ahead(urls)


def readable_by_duckdb(connection: Any, place: Place) -> None:
    """Let DuckDB open ``place``, and what is in it, by its exact name; nothing is to be done for a path.

    Args:
        connection: an open connection; its cursors can open the same places.
    """
    if isinstance(place, Location):
        from probe.core.storage.duckdb_files import register

        register(connection, place.url.partition(MARK)[0], _found)


def failure_of(error: BaseException | None, places: Iterable[Place]) -> LocationError | None:
    """Return the failure to read an object that DuckDB has wrapped in ``error``; None if there was none."""
    for store in {place.store for place in places if isinstance(place, Location)} if error else ():
        if failed := store.failed_in_query(error):
            return failed
    return None


def _found(url: str) -> Location:
    """Return the location of an object in the newest store that has it.

    Raises:
        FileNotFoundError: if none does.
    """
    for store in stores():
        if f"{url}/".startswith(f"{store.root}/") and (entry := store.entry(url)):
            return Location(url, store, entry)
    raise FileNotFoundError(2, "expected an object of a run that is open", url)


def _restored(
    url: str, root: str, token: str, sizes: tuple[int, int, int], copy: str, entry: ListedObject | None
) -> Location:
    store = store_of(root, token, PartSizes(*sizes), copy)
    if entry:
        store.learn(url, entry)
    return Location(url, store, entry)
