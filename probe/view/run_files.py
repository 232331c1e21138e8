"""Files of a run, listed again as it grows; what has not changed since is not opened again."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import NamedTuple

from probe.core.storage import sqlite_reader
from probe.core.storage.directories import RankDirectory, RecordedRun, last_run
from probe.core.storage.files import check_permitted
from probe.core.storage.layout import is_table_suffix
from probe.core.storage.location import Location, Place, contents, located
from probe.core.storage.manifest import FILE
from probe.core.storage.metrics_schema import FILE_NAMES
from probe.core.storage.packed.run import INDEX, packed_files, packed_index
from probe.core.storage.problems import Problems
from probe.core.storage.table_files import TableFile, each_once, table_file

Files = dict[str, list[tuple[int, TableFile]]]
"""Files by signal, each with the index of its directory."""


class FileStamp(NamedTuple):
    """Size and time of the last change of a file."""

    size: int
    modified_ns: int


class RunListing(NamedTuple):
    """A run as it was listed last."""

    run: RecordedRun
    files: Files
    stamps: dict[Place, FileStamp]
    """Stamps of all files of rows and of the manifests."""
    problems: Problems
    databases: bool
    """True if rows may be in databases alone, which are copied as a whole."""

    @property
    def changed(self) -> float:
        """Seconds since the epoch of the latest change of a file; 0 if there is none."""
        return max((stamp.modified_ns for stamp in self.stamps.values()), default=0) / 1e9

    @property
    def ended(self) -> bool:
        """True if every rank has ended."""
        return self.run.ended


class RunGone(Exception):  # noqa: N818 - a state, which the person who looks at a run is informed of
    """The run is not there any more."""


class GrowingFiles:
    """Files of one run.

    Args:
        place: the folder in which ranks have written, or its URL.
        directory: name of a directory of the run, if there are several; empty for the one that began last.
    """

    def __init__(self, place: str, directory: str = "") -> None:
        self.place, self.directory = place, directory
        self._lock = threading.Lock()
        self._tables: dict[Place, tuple[FileStamp, TableFile | None, Problems]] = {}
        self._listing: RunListing | None = None
        self._known: tuple[RecordedRun, FileStamp | None, dict[Place, FileStamp]] | None = None
        self._found_problems = Problems()

    def look(self) -> RunListing:
        """Return the files of the run; the same object as before if nothing has changed.

        Raises:
            RunGone: if the run has been removed.
        """
        root = located(self.place).expanduser().absolute()
        with self._lock:
            try:
                found = self._look(root)
            except FileNotFoundError as error:
                raise RunGone(f"{root}: the run has been removed while it was read ({error})") from error
            before = self._listing
            if before is None or before.stamps != found.stamps or before.run != found.run:
                self._listing = before = found
            return before

    def _look(self, root: Place) -> RunListing:
        problems = Problems()
        run = self._same_run(root)
        if run is None:
            run = self._run(root, self._found_problems)
        problems.extend(self._found_problems)
        manifests = {d.path / FILE: stamp for d in run.directories if (stamp := stamp_of(d.path / FILE))}
        self._known = run, stamp_of(root), manifests
        stamps = dict(manifests)
        if run.directories[0].packed is not None:
            index = root / INDEX
            stamps |= {index: stamp} if (stamp := stamp_of(index)) else {}
            files = packed_files(packed_index(root), run.directories)
            for path in (file.path for own in files.values() for _, file in own):
                if isinstance(path, Path):
                    check_permitted(path)
                stamps |= {path: stamp} if (stamp := stamp_of(path)) else {}
            return RunListing(run, files, stamps, problems, False)
        files = self._listed(run.directories, stamps, problems)
        databases = self._databases(run)
        return RunListing(run, files, stamps | databases, problems, bool(databases))

    def _same_run(self, root: Place) -> RecordedRun | None:
        """Return the run as it was found before, if neither a directory nor a manifest has changed since."""
        if self._known is None or isinstance(root, Location):
            self._found_problems = Problems()
            return None
        run, stamp, manifests = self._known
        now = {d.path / FILE: own for d in run.directories if (own := stamp_of(d.path / FILE))}
        same = stamp == stamp_of(root) and manifests == now
        if same and not run.missing and run.directories[0].packed is None:
            return run
        self._found_problems = Problems()
        return None

    def _databases(self, run: RecordedRun) -> dict[Place, FileStamp]:
        """Return the stamps of the databases that have rows, and of their journals."""
        found: dict[Place, FileStamp] = {}
        for directory in run.directories:
            paths = [directory.path / f"{name}{end}" for name in FILE_NAMES for end in ("", "-wal")]
            own = {path: stamp for path in paths if (stamp := stamp_of(path))}
            if own and sqlite_reader.may_have_rows(directory.path):
                found |= own
        return found

    def _run(self, root: Place, problems: Problems) -> RecordedRun:
        try:
            return last_run(root, problems, self.directory)
        except ValueError as error:
            raise RunGone(str(error)) from error

    def _listed(
        self, directories: tuple[RankDirectory, ...], stamps: dict[Place, FileStamp], problems: Problems
    ) -> Files:
        """Return the files in ``directories``, and add their stamps."""
        files: Files = {}
        known, self._tables = self._tables, {}
        for n, directory in enumerate(directories):
            found = []
            for path in contents(directory.path):
                if not is_table_suffix(path.suffix) or (stamp := stamp_of(path)) is None:
                    continue
                before = known.get(path)
                if before is None or before[0] != stamp:
                    own = Problems()
                    before = stamp, table_file(path, own), own
                self._tables[path] = before
                problems.extend(before[2])
                if before[1] is not None:
                    stamps[path] = stamp
                    found.append(before[1])
            for file in each_once(sorted(found, key=lambda f: (f.signal, f.first, f.part, f.path.name))):
                files.setdefault(file.signal, []).append((n, file))
        return files


def stamp_of(path: Place) -> FileStamp | None:
    """Return the stamp of a file; None if there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return FileStamp(found.st_size, found.st_mtime_ns)
