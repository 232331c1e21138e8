"""Object storage by fsspec: one listing of a run, and each part of an object fetched once.

The credentials are those of the storage's own tools: the variables and files of AWS, Google Cloud and Azure. They are
never part of a URL, an error or a pickle.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
import weakref
from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from datetime import datetime
from errno import EIO
from math import ceil
from typing import Any, NamedTuple

from probe.core.errors import missing
from probe.core.language import invalid
from probe.core.storage.fetched_parts import FetchedParts, ListedObject

EXTRAS = {
    **dict.fromkeys(("s3", "s3a"), ("s3fs", "s3")),
    **dict.fromkeys(("gs", "gcs"), ("gcsfs", "gcs")),
    **dict.fromkeys(("az", "abfs", "abfss"), ("adlfs", "azure")),
    "memory": ("fsspec", "s3"),
}
"""Package and extra of this one by the scheme of URLs."""


class PartSizes(NamedTuple):
    """Sizes of the parts in which objects are fetched, in bytes; the same in all processes that read a run."""

    whole: int = 8 << 20
    """An object that is fetched as a whole, at most."""
    tail: int = 256 << 10
    """End of a larger object, in which a Parquet file has its footer; it is a part of its own."""
    largest: int = 192 << 20
    """Another part of a larger object, at most; an object of up to twice this has a tail and two other parts."""

    def part_at(self, size: int, at: int) -> tuple[int, int]:
        """Return begin and end of the part of an object of ``size`` bytes that holds the byte ``at``."""
        if size <= self.whole:
            return 0, size
        body = size - self.tail
        if at >= body:
            return body, size
        number = max(2, ceil(body / self.largest))
        step = ceil(body / number)
        begin = at // step * step
        return begin, min(begin + step, body)


SIZES = PartSizes()
"""Sizes of a run that a user names."""
AT_ONCE = 32
"""Objects that are fetched at the same time."""
LARGE_AT_ONCE = 2
"""Parts of larger objects that are fetched at the same time, since each is held in memory."""
ATTEMPTS = 5
"""Attempts of a request that is refused or has no answer, and attempts to read an answer that breaks off."""
SECRETS = (
    *("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_ACCESS_KEY_ID", "FSSPEC_S3_SECRET", "FSSPEC_S3_KEY"),
    *("AZURE_STORAGE_KEY", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_CONNECTION_STRING", "AZURE_STORAGE_SAS_TOKEN"),
    *("AZURE_CLIENT_SECRET", "GOOGLE_API_KEY"),
)
"""Variables whose values are never shown."""


class LocationError(OSError, ValueError):
    """An object or folder cannot be read.

    Args:
        url: URL of the object or folder.
        what: what was expected, what came, and what to do.
    """

    def __init__(self, url: str, what: str) -> None:
        super().__init__(EIO, what, url)

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"

    def __reduce__(self) -> tuple[Any, ...]:
        return LocationError, (self.filename, self.strerror)


class ObjectStore:
    """The file system of one run, its listing, and a copy of what was read.

    Args:
        root: URL of the run.
        token: name that is the same for the store in other processes.
        recursive: True to list all of ``root`` by one recursive listing; else each folder by itself when it is asked.
        copy: folder in which the process that has listed the run keeps what was fetched.
    """

    def __init__(self, root: str, token: str, recursive: bool, sizes: PartSizes, copy: str = "") -> None:
        self.root, self.token, self._recursive, self.sizes = root, token, recursive, sizes
        self._entries: dict[str, ListedObject | None] = {}
        self._folders: dict[str, set[str] | None] = {}
        self._lock = threading.RLock()
        self._large = threading.Semaphore(LARGE_AT_ONCE)
        self._fetched = FetchedParts(copy)
        self._failures: dict[str, LocationError] = {}
        """Failures to list or to read, by URL."""
        self._failed: LocationError | None = None
        """The failure that came last."""
        self._fs: Any = None

    @property
    def copy(self) -> str:
        """Folder with what was fetched, for other processes of this machine."""
        return self._fetched.folder

    # listing

    def known(self, url: str) -> ListedObject | None:
        """Return the entry of ``url`` if it is listed already, without a request."""
        return self._entries.get(url)

    def learn(self, url: str, entry: ListedObject) -> None:
        """Keep the entry of an object that another process has listed."""
        self._entries.setdefault(url, entry)

    def entry(self, url: str) -> ListedObject | None:
        """Return the entry of an object; None if there is none.

        Raises:
            LocationError: if its folder cannot be listed.
        """
        if url not in self._entries:
            folder = url.rpartition("/")[0] if url != self.root else url
            if folder in self._folders or (self._recursive and f"{url}/".startswith(f"{self.root}/")):
                self._list(folder)
            else:
                self._entries[url] = self._fetched.object(url) or self._asked(url)
        return self._entries.get(url)

    def is_folder(self, url: str) -> bool:
        """Return whether there are objects in ``url``."""
        return self._list(url) is not None

    def names(self, url: str) -> set[str]:
        """Return the names of objects and folders in the folder ``url``; none if there is no such folder."""
        return self._list(url) or set()

    def _list(self, url: str) -> set[str] | None:
        """Return the names in ``url``, listed once; None if there is no such folder."""
        with self._lock:
            recursive = self._recursive and f"{url}/".startswith(f"{self.root}/")
            listed = self.root if recursive else url
            if listed in self._failures:
                raise self._failures[listed]
            if listed not in self._folders:
                self._take(listed, recursive)
            return self._folders.setdefault(url, None)

    def _fail(self, url: str, what: str) -> LocationError:
        self._failures[url] = self._failed = LocationError(url, what)
        return self._failed

    def _asked(self, url: str) -> ListedObject | None:
        """Ask for a single object."""
        try:
            fields = self.fs.info(self._path(url))
        except FileNotFoundError:
            return None
        except Exception as error:  # noqa: BLE001 - each storage has errors of its own
            raise LocationError(url, _explained(error, "an object")) from None
        return None if fields.get("type") == "directory" else _entry(fields)

    def _take(self, url: str, recursive: bool) -> None:
        """List ``url`` and keep what is there."""
        base = self._path(url).rstrip("/")
        try:
            about_of = self.fs.find(base, detail=True) if recursive else _by_name(self.fs.ls(base, detail=True))
        except (FileNotFoundError, NotADirectoryError):
            about_of = {}
        except Exception as error:  # noqa: BLE001 - each storage has errors of its own
            raise self._fail(url, _explained(error, "a folder that can be listed")) from None
        self._folders[url] = None
        for name, fields in about_of.items():
            inside = name[len(base) :].strip("/")
            is_folder = fields.get("type") == "directory" or name.endswith("/")
            if not is_folder:
                self._entries[f"{url}/{inside}" if inside else url] = _entry(fields)
            if inside or is_folder:
                self._add_folders(url, inside.split("/") if inside else [], is_folder and (recursive or not inside))

    def _add_folders(self, url: str, names: list[str], is_empty: bool) -> None:
        """Add ``names``, one in the other, to the folder ``url``; the last may be an empty folder."""
        for name in names:
            folders = self._folders.get(url)
            if folders is None:
                folders = self._folders[url] = set()
            folders.add(name)
            url = f"{url}/{name}"
        if is_empty and self._folders.get(url) is None:
            self._folders[url] = set()

    # reading

    def read(self, url: str, entry: ListedObject, at: int, size: int) -> bytes:
        """Return ``size`` bytes from ``at`` on, fewer if the object or a part of it ends before.

        Raises:
            LocationError: if they cannot be read, or the object has changed since it was listed.
        """
        if at >= entry.size or size <= 0:
            return b""
        begin, end = self.sizes.part_at(entry.size, at)
        part = self._fetched.read(url, begin, at, size)
        if part is None:
            with self._fetched.alone(url, begin):
                part = self._fetched.read(url, begin, at, size)
                if part is None:
                    data = self._fetch(url, entry, begin, end)
                    self._fetched.keep(url, entry, begin, data)
                    part = data[at - begin : at - begin + size]
        return part

    def fetch_ahead(self, urls: Iterable[str]) -> None:
        """Fetch the objects that are read as a whole, many at a time."""
        entries = [(url, self.entry(url)) for url in urls]
        small = [(url, entry) for url, entry in entries if entry and entry.size <= self.sizes.whole]
        missing = [(url, entry) for url, entry in small if not self._fetched.has(url, 0)]

        def fetch(pair: tuple[str, ListedObject]) -> None:
            if self._fetched.is_full:  # it would be fetched again when it is read
                return
            with suppress(LocationError):  # the reader of the object gets the same error
                self.read(*pair, 0, 1)

        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="probe-fetch") as pool:
            for _ in pool.map(fetch, missing):
                pass

    def failed_in_query(self, error: BaseException | None) -> LocationError | None:
        """Return the error of reading that ``error`` of DuckDB quotes; None if there is none."""
        failed = self._failed
        return failed if failed and failed.strerror and str(failed) in str(error) else None

    def _fetch(self, url: str, entry: ListedObject, begin: int, end: int) -> bytes:
        if url in self._failures:
            raise self._failures[url]
        try:
            with self._large if end - begin > self.sizes.whole else nullcontext():
                data, version = self._requested(url, entry, begin, end)
        except FileNotFoundError:
            trouble = "expected an object, which was listed; it is gone now: analyse again when nothing writes there"
            raise self._fail(url, trouble) from None
        except LocationError as error:
            raise self._fail(url, str(error.strerror)) from None
        except Exception as error:  # noqa: BLE001 - each storage has errors of its own
            raise self._fail(url, _explained(error, "an object that can be read")) from None
        if len(data) != end - begin or (version and entry.version and version != entry.version):
            raise self._fail(url, _changed(entry, version, len(data), end - begin))
        return data

    def _requested(self, url: str, entry: ListedObject, begin: int, end: int) -> tuple[bytes, str]:
        """Return the bytes of a part, and the version of the object that they are of; empty if it is unknown."""
        path, whole = self._path(url), begin == 0 and end == entry.size
        if end == begin:
            return b"", ""
        if hasattr(self.fs, "call_s3"):
            return _fetched_from_s3(self.fs, path, None if whole else (begin, end))
        data = self.fs.cat_file(path) if whole else self.fs.cat_file(path, start=begin, end=end)
        return bytes(data), "" if whole else _entry(self.fs.info(path)).version

    @property
    def fs(self) -> Any:
        """The file system.

        Raises:
            ImportError: if its package is missing.
        """
        with self._lock:
            if self._fs is None:
                self._fs = _file_system(self.root)
            return self._fs

    def _path(self, url: str) -> str:
        return str(self.fs._strip_protocol(url))


_STORES: weakref.WeakValueDictionary[str, ObjectStore] = weakref.WeakValueDictionary()
_RECENT: deque[ObjectStore] = deque(maxlen=2)
"""Stores of locations from other processes, kept for the next location of the same run: a comparison has two."""
_REGISTRY = threading.Lock()


def new_store(url: str) -> ObjectStore:
    """Return the store of the run at ``url``, as a user wrote it.

    Raises:
        ValueError: if the URL is of an unknown kind, has credentials in it, or names no bucket.
    """
    scheme, _, rest = url.partition("://")
    bucket = rest.partition("/")[0]
    if "@" in bucket and (":" in bucket or not scheme.startswith("ab")):
        raise invalid(
            "{scheme}://...@{value}: expected a URL without credentials; there is something before the "
            "@: set the variables or files of the storage's own tools, such as AWS_PROFILE",
            scheme=scheme,
            value=bucket.rpartition("@")[2],
        )
    if scheme not in EXTRAS:
        begins = ", ".join(f"{s}://" for s in EXTRAS)
        raise ValueError(f"{url}: expected a path, or a URL that begins with {begins}; load it down")
    if not bucket:
        raise invalid("{url}: expected a bucket and a folder, such as {scheme}://bucket/run", url=url, scheme=scheme)
    return _made(f"{scheme}://{rest.rstrip('/')}", uuid.uuid4().hex, True, SIZES)


def store_of(root: str, token: str, sizes: PartSizes, copy: str) -> ObjectStore:
    """Return the store of a location that came from another process: the same one for all of its locations."""
    with _REGISTRY:
        store = _STORES.get(token)
    if store is None:
        store = _made(root, token, False, sizes, copy)
        _RECENT.append(store)
    return store


def _made(root: str, token: str, recursive: bool, sizes: PartSizes, copy: str = "") -> ObjectStore:
    with _REGISTRY:
        store = _STORES.get(token)
        if store is None:
            store = _STORES[token] = ObjectStore(root, token, recursive, sizes, copy)
        return store


def stores() -> list[ObjectStore]:
    """Return the stores that are in use, the newest first."""
    with _REGISTRY:
        return list(_STORES.values())[::-1]


def _file_system(url: str) -> Any:
    scheme = url.partition("://")[0]
    package, extra = EXTRAS[scheme]
    try:
        import fsspec

        files = fsspec.filesystem(scheme, skip_instance_cache=True, use_listings_cache=False)
        if package == "s3fs":
            _limit_attempts(files)
        return files
    except ImportError as absent:
        raise ImportError(missing(f"reading {url}", package, extra)) from absent
    except Exception as error:  # noqa: BLE001 - each storage has errors of its own
        raise LocationError(url, _explained(error, f"{package} to be set up")) from None


def _by_name(entries: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    return {fields["name"]: fields for fields in entries}


def _entry(fields: Mapping[str, Any]) -> ListedObject:
    """Return the entry of what a file system says about an object."""
    times = (fields.get(key) for key in ("LastModified", "last_modified", "updated", "mtime", "created"))
    version = next((fields[key] for key in ("ETag", "etag") if fields.get(key)), "")
    return ListedObject(
        int(fields.get("size") or 0), _seconds(next(filter(None, times), None)), str(version).strip('"')
    )


def _seconds(time: object) -> float:
    if isinstance(time, str):
        try:
            time = datetime.fromisoformat(time.replace("Z", "+00:00"))
        except ValueError:
            return 0.0
    if isinstance(time, datetime):
        return time.timestamp()
    return float(time) if isinstance(time, int | float) else 0.0


def _changed(entry: ListedObject, version: str, came: int, expected: int) -> str:
    trouble = f"expected {expected:,} bytes; {came:,} came" if came != expected else "it has another version"
    if version and version == entry.version:
        return f"{trouble}: the answer was cut short; try again"
    return f"it has changed since it was listed: {trouble}; analyse again when nothing writes there"


def _explained(error: Exception, expected: str) -> str:
    """Return what was expected, what came and what to do, for an error of a file system."""
    came = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    advice = "check the endpoint and the network, and try again"
    if isinstance(error, PermissionError) or "Credentials" in type(error).__name__:
        advice = "check the credentials (such as AWS_PROFILE, or AWS_ACCESS_KEY_ID) and their right to list and read"
    elif isinstance(error, TimeoutError) or "Timeout" in type(error).__name__:
        advice = "the storage does not answer in time: check the endpoint and the network, and try again"
    elif getattr(error, "errno", None) == 16:
        advice = "the storage is busy, after several attempts: try again later, or with fewer processes"
    return f"expected {expected}; {without_secrets(came)[:300]}: {advice}"


def without_secrets(text: str) -> str:
    """Return ``text`` without the credentials that are set in the environment."""
    for name in SECRETS:
        if secret := os.environ.get(name):
            text = text.replace(secret, "...")
    return text


def _limit_attempts(fs: Any) -> None:
    """Let botocore alone repeat requests of ``fs``, as ``AWS_RETRY_MODE`` and ``AWS_MAX_ATTEMPTS`` or its files say.

    s3fs would repeat each of its attempts: 25 requests and 40 seconds for an object that always answers 503, an hour if
    there are thousands. Where no mode is chosen, it is ``standard``: at most :data:`ATTEMPTS`, with 15 seconds between
    them, and a hundred repetitions in all that are not followed by answers.

    Args:
        fs: a ``s3fs.S3FileSystem`` that has made no request yet.
    """
    from botocore.session import Session

    fs.retries = 1
    session = Session(profile=fs.kwargs.get("profile"))
    if "AWS_RETRY_MODE" not in os.environ and "retry_mode" not in session.get_scoped_config():
        attempts = session.get_config_variable("max_attempts") or ATTEMPTS
        fs.config_kwargs = {"retries": {"mode": "standard", "total_max_attempts": attempts}} | fs.config_kwargs


def _fetched_from_s3(fs: Any, path: str, part: tuple[int, int] | None) -> tuple[bytes, str]:
    """Return the bytes of an object in S3 and its ETag: ``fsspec`` has no function for a part and its version, and
    without the version a change between two parts of an object goes unnoticed.

    Args:
        fs: a ``s3fs.S3FileSystem``.
        part: first byte, and the one after the last; None for the whole object.

    Raises:
        OSError: if it cannot be read.
    """
    from fsspec.asyn import sync
    from s3fs.core import S3_RETRYABLE_ERRORS

    bucket, key, _ = fs.split_path(path)
    asked = {"Range": f"bytes={part[0]}-{part[1] - 1}"} if part else {}
    for attempt in range(1, ATTEMPTS + 1):
        answer = fs.call_s3("get_object", Bucket=bucket, Key=key, **asked)
        try:
            return sync(fs.loop, answer["Body"].read), str(answer.get("ETag", "")).strip('"')
        except S3_RETRYABLE_ERRORS:
            if attempt == ATTEMPTS:
                raise
            time.sleep(0.1 * 1.7**attempt)
        finally:
            answer["Body"].close()
    raise AssertionError("the last attempt returns or raises")
