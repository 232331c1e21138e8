"""List of all runs in some folders, each with a number that it keeps; summaries are read little by little."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from probe.core.storage.directories import find, runs
from probe.core.storage.location import Location, Place, contents, located
from probe.core.storage.packed_run import is_packed
from probe.core.storage.problems import Problems
from probe.core.storage.run_directory import parsed_name
from probe.view.background import BackgroundTasks
from probe.view.findings import DumpedFindings
from probe.view.run_files import RunFiles, RunGone
from probe.view.run_reader import LEAST_SECONDS
from probe.view.run_summary import RunSummary, summary_of
from probe.view.viewed_run import ViewedRun

_log = logging.getLogger("probe.view")

DEEPEST = 4
"""Levels of folders in which runs are looked for."""
MOST_RUNS = 100_000
"""Runs that are listed at most."""
MOST_OPEN = 4
"""Runs whose rows are open at a time."""
SEARCH_SECONDS = 10.0
"""Shortest time between two searches for new runs."""
SHARE = 20
"""A second of work on summaries is followed by so many seconds without, once all runs are known."""


@dataclass
class ListedRun:
    """A run with its number."""

    number: int
    place: str
    directory: str
    """Name of its first directory."""
    name: str
    summary: RunSummary | None = None
    gone: bool = False
    read: float = 0.0
    """Time of the last summary, on the monotonic clock."""
    dumped: DumpedFindings = field(default_factory=DumpedFindings)


class RunList:
    """All runs in some folders.

    Args:
        places: folders, or URLs.
        cache: folder of the cache.
        changed: called with the number of a run that has changed; with None when the list has.
    """

    def __init__(self, places: Sequence[str], cache: Path, changed: Callable[[int | None], None]) -> None:
        self._places, self._cache, self._changed = list(places), cache, changed
        self._lock = threading.RLock()
        self._runs: list[ListedRun] = []
        self._known: dict[tuple[str, str], ListedRun] = {}
        self._roots: dict[str, float] = {}
        self._open: OrderedDict[int, ViewedRun] = OrderedDict()
        self._ended = threading.Event()
        self.tasks = BackgroundTasks(self._task_ended)
        self._thread = threading.Thread(target=self._follow, name="probe-view-runs", daemon=True)

    def start(self) -> None:
        """Find the runs, and follow them on a thread."""
        self._search()
        self._thread.start()

    def close(self) -> None:
        """End the thread, and release all resources."""
        self._ended.set()
        self.tasks.close()
        self._thread.join(5)
        with self._lock:
            while self._open:
                self._open.popitem()[1].close()

    @property
    def runs(self) -> list[ListedRun]:
        """All runs by number, those that have been removed left out."""
        with self._lock:
            return [run for run in self._runs if not run.gone]

    def run(self, number: int) -> ListedRun | None:
        """Return the run of a number; None if there is none."""
        with self._lock:
            return self._runs[number] if 0 <= number < len(self._runs) else None

    def viewed(self, number: int) -> ViewedRun:
        """Return an opened run.

        Raises:
            KeyError: if there is no run of this number.
        """
        closing: list[ViewedRun] = []
        with self._lock:
            run = self.run(number)
            if run is None:
                raise KeyError(number)
            found = self._open.pop(number, None)
            if found is None:
                found = ViewedRun(run.place, run.directory, self._cache, self.tasks)
            self._open[number] = found
            while len(self._open) > MOST_OPEN:
                closing.append(self._open.popitem(last=False)[1])
        for each in closing:
            each.close()
        return found

    def read(self, run: ListedRun) -> RunSummary | None:
        """Read the summary of a run anew, unless that was done a moment ago; None if it has been removed."""
        if run.gone or (run.summary is not None and time.monotonic() - run.read < LEAST_SECONDS):
            return run.summary
        try:
            with self._lock:
                opened = self._open.get(run.number)
            if opened is not None:
                summary = opened.summary()
            else:
                place = located(run.place)
                listing = RunFiles(run.place, run.directory).look()
                summary = summary_of(listing, place, run.dumped)
        except RunGone:
            run.gone, run.summary = True, None
            self._changed(None)
            return None
        except (OSError, ValueError) as error:
            _log.warning("%s: its summary cannot be read: %s", run.place, error)
            summary = RunSummary(False, 0, -1, 0, None, None, None, [str(error)], 0.0)
        run.read = time.monotonic()
        if run.summary != summary:
            listed, run.summary = run.summary is None, summary
            self._changed(run.number)
            if listed:
                self._changed(None)
        return summary

    def _task_ended(self, key: object) -> None:
        if isinstance(key, tuple) and key[0] == "analysis":
            run = self._known.get((key[1], key[2]))
            if run is not None:
                self._changed(run.number)

    def _search(self) -> None:
        """Add the runs that are new."""
        before = len(self._runs)
        for text in self._places:
            for root in _roots(located(text).expanduser().absolute(), 0):
                if self._ended.is_set() or len(self._runs) >= MOST_RUNS:
                    return
                self._add(root)
        if len(self._runs) != before:
            self._changed(None)

    def _add(self, root: Place) -> None:
        """Add the runs in the folder of a program."""
        place = str(root)
        changed = 0.0 if isinstance(root, Location) else _modified(root)
        if self._roots.get(place) == changed and changed:
            return
        self._roots[place] = changed
        try:
            found = runs(find(root, Problems()))
        except (OSError, ValueError) as error:
            _log.warning("%s: its runs cannot be listed: %s", root, error)
            return
        for number, run in enumerate(found):
            names = [directory.path.name for directory in run.directories]
            with self._lock:
                if any((place, name) in self._known for name in names):
                    continue
                shown = (
                    root.name if len(found) == 1 else f"{root.name} ({number + 1}: {run.name.partition('-rank')[0]})"
                )
                one = ListedRun(len(self._runs), place, run.name, shown)
                self._runs.append(one)
                for name in names:
                    self._known[place, name] = one

    def _follow(self) -> None:
        """Read summaries: those of runs that were never read first, then those of runs that go on."""
        searched = time.monotonic()
        while not self._ended.is_set():
            began = time.monotonic()
            new = next((run for run in self.runs if run.summary is None), None)
            if new is not None:
                self.read(new)
                continue
            for run in self.runs:
                if self._ended.is_set():
                    return
                if run.summary is not None and run.summary.alive:
                    self.read(run)
            if time.monotonic() - searched >= SEARCH_SECONDS:
                self._search()
                searched = time.monotonic()
            self._ended.wait(max(2.0, SHARE * (time.monotonic() - began)))


def _roots(folder: Place, depth: int) -> Iterator[Place]:
    """Yield the folders in which ranks have written: ``folder``, or those in it."""
    try:
        if is_packed(folder):
            yield folder
            return
        inside = [path for path in contents(folder) if not path.name.startswith(".") and path.is_dir()]
    except OSError:
        return
    if parsed_name(folder.name) or any(parsed_name(path.name) for path in inside):
        yield folder
    elif depth < DEEPEST:
        for path in inside:
            yield from _roots(path, depth + 1)


def _modified(folder: Place) -> float:
    try:
        return folder.stat().st_mtime
    except OSError:
        return 0.0
