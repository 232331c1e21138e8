"""List of all runs in some folders, each with a number that it keeps; summaries are read little by little."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from probe.core.alerting.redaction import describe_error
from probe.core.faults import Faults
from probe.core.storage.directories import find, runs
from probe.core.storage.files import leads_out
from probe.core.storage.location import MARK, Location, Place, contents, located
from probe.core.storage.packed.run import INDEX
from probe.core.storage.problems import Problems
from probe.core.storage.run_directory import local_stamp, parsed_name
from probe.core.storage.v2_layout import is_written_by_v2
from probe.core.worker import Worker
from probe.view.background import NICE, BackgroundTasks
from probe.view.findings import DumpedFindings
from probe.view.run_files import GrowingFiles, RunGone
from probe.view.run_reader import LEAST_SECONDS, REMOTE_SECONDS
from probe.view.run_summary import RunSummary, summary_of, unread_summary
from probe.view.viewed_run import ViewedRun, analysed

_log = logging.getLogger("probe.view")

WHERE = "list of runs"
"""Place under which failures are counted."""
DEEPEST = 4
"""Levels of folders in which runs are looked for."""
MOST_RUNS = 100_000
"""Most runs that are listed."""
MOST_OPEN = 4
"""Most runs whose rows are open at a time."""
SEARCH_SECONDS = 2.0
"""Shortest time between two searches for new runs."""
PAUSE_SECONDS = 0.001
"""Pause after each summary, in which requests are answered."""
SHARE = 20
"""A second of work on summaries is followed by so many seconds without, once all runs are known."""


@dataclass
class ListedRun:
    """A run with its number."""

    number: int
    place: str
    directory: str
    """Name of its first directory; empty as long as it has not been looked for."""
    name: str
    summary: RunSummary | None = None
    gone: bool = False
    read: float = 0.0
    """Time of the last summary, on the monotonic clock."""
    dumped: DumpedFindings = field(default_factory=DumpedFindings)
    analysed: bool = False
    """True once its analysis has begun for the list."""

    def update(self, summary: RunSummary) -> RunSummary | None:
        """Take a summary that was read just now; return the one before."""
        before, self.summary, self.read = self.summary, summary, time.monotonic()
        return before

    def remove(self) -> bool:
        """Note that the run has been removed; return whether that was known."""
        known, self.gone, self.summary = self.gone, True, None
        return known


class RunList:
    """All runs in some folders.

    Args:
        places: folders, or URLs.
        cache: folder of the cache.
        changed: called with the number of a run that has changed; with None when the list has.
        folders: folders out of which analyses follow no link; none: they follow all.
        nice: priority of the analyses.
    """

    def __init__(
        self,
        places: Sequence[str],
        cache: Path,
        changed: Callable[[int | None], None],
        folders: Sequence[str] = (),
        nice: int = NICE,
    ) -> None:
        self._places, self._cache, self._changed = list(places), cache, changed
        self._lock = threading.RLock()
        self._runs: list[ListedRun] = []
        self._known: dict[tuple[str, str], ListedRun] = {}
        self._roots: dict[str, float] = {}
        """Folders with runs, with the times at which they had changed."""
        self._resolved = set[str]()
        self._again: dict[str, float] = {}
        """Times of the next searches in object storage, where each costs requests."""
        self._resolving = threading.Lock()
        self._open: OrderedDict[int, ViewedRun] = OrderedDict()
        self._files: OrderedDict[int, GrowingFiles] = OrderedDict()
        self._ended = threading.Event()
        self._search_time = 0.0
        """Time of the next search for new runs, on the monotonic clock."""
        self.problem = ""
        """Failure of the last search for runs, or of the thread that follows them; empty if it works."""
        self._outside = set[Place]()
        """Links out of the folders, which are not followed."""
        self.tasks = BackgroundTasks(self._task_ended, folders, nice)
        self._worker: Worker | None = None

    def start(self) -> None:
        """Find the runs, and follow them on a thread."""
        self._search()
        self._search_time = time.monotonic() + SEARCH_SECONDS
        self._worker = Worker("probe-view-runs", WHERE, Faults("the view goes on"), look=self._follow, due=0.0)

    def close(self) -> None:
        """End the thread, and release all resources."""
        self._ended.set()
        self.tasks.close()
        if self._worker is not None:
            self._worker.end()
            self._worker.join(5)
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
        run = self.run(number)
        if run is None:
            raise KeyError(number)
        self.resolve(run)
        with self._lock:
            found = self._open.pop(number, None)
            if found is None:
                found = ViewedRun(self._files_of(run), self._cache, self.tasks)
            self._open[number] = found
            while len(self._open) > MOST_OPEN:
                closing.append(self._open.popitem(last=False)[1])
        for each in closing:
            each.close()
        return found

    def read(self, run: ListedRun) -> RunSummary | None:
        """Read the summary of a run anew, unless that was done a moment ago; None if it has been removed."""
        least = REMOTE_SECONDS if MARK in run.place else LEAST_SECONDS
        if run.gone or (run.summary is not None and time.monotonic() - run.read < least):
            return run.summary
        try:
            self.resolve(run)
            with self._lock:
                opened = self._open.get(run.number)
            if opened is not None:
                summary = opened.summary()
            else:
                files = self._files_of(run)
                summary = summary_of(files.look(), located(run.place), run.dumped)
        except RunGone:
            self.forget(run)
            return None
        except (OSError, ValueError) as error:
            _log.warning("%s: its summary cannot be read: %s", run.place, error)
            summary = unread_summary(str(error))
        except Exception as error:  # noqa: BLE001 - one run is not to end the others
            _log.exception("%s: its summary cannot be read", run.place)
            summary = unread_summary(describe_error(error))
        before = run.update(summary)
        if before != summary:
            self._changed(run.number)
            if before is None:
                self._changed(None)
        return summary

    def _files_of(self, run: ListedRun) -> GrowingFiles:
        """Return the files of a run; those of a few runs are kept, since one of them may be opened next."""
        with self._lock:
            files = self._files.pop(run.number, None) or GrowingFiles(run.place, run.directory)
            self._files[run.number] = files
            while len(self._files) > MOST_OPEN:
                self._files.popitem(last=False)
            return files

    def forget(self, run: ListedRun) -> None:
        """Leave a run that has been removed out of the list; its number is not used again."""
        with self._lock:
            known = run.remove()
            opened = self._open.pop(run.number, None)
        if opened is not None:
            opened.close()
        if not known:
            self._changed(None)

    def _task_ended(self, key: object) -> None:
        if isinstance(key, tuple) and key[0] == "analysis":
            run = self._known.get((key[1], key[2]))
            if run is not None:
                self._changed(run.number)

    def _search(self) -> None:
        """Add the folders that are new, and the runs in those that have changed."""
        before = len(self._runs)
        for text in self._places:
            if MARK in text and time.monotonic() < self._again.get(text, 0.0):
                continue
            self._again[text] = time.monotonic() + REMOTE_SECONDS
            for root in self._rank_folders(located(text).expanduser().absolute()):
                if self._ended.is_set() or len(self._runs) >= MOST_RUNS:
                    return
                place, changed = str(root), _modified(root)
                if place not in self._roots:
                    self._roots[place] = changed
                    with self._lock:
                        self._runs.append(ListedRun(len(self._runs), place, "", root.name))
                elif self._roots[place] != changed and place in self._resolved:
                    self._roots[place] = changed
                    self._resolve(root, None)
        if len(self._runs) != before:
            self._changed(None)

    def resolve(self, run: ListedRun) -> None:
        """Find the runs in the folder of ``run``, unless that is done: the one that began last is ``run``."""
        if not run.directory:
            with self._resolving:
                if not run.directory:
                    self._resolve(located(run.place), run)

    def _resolve(self, root: Place, last: ListedRun | None) -> None:
        place = str(root)
        try:
            found = runs(find(root, Problems()))
        except (OSError, ValueError) as error:
            _log.warning("%s: its runs cannot be listed: %s", root, error)
            return
        self._resolved.add(place)
        for number, run in reversed(list(enumerate(found))):
            names = [directory.path.name for directory in run.directories]
            with self._lock:
                if any((place, name) in self._known for name in names):
                    continue
                first = min(directory.began for directory in run.directories)
                began = local_stamp(first) if first else (parsed_name(run.name) or (run.name, 0))[0]
                shown = root.name if len(found) == 1 else f"{root.name} ({number + 1}: {began})"
                if last is not None:
                    one, last = last, None
                else:
                    one = ListedRun(len(self._runs), place, "", "")
                    self._runs.append(one)
                one.directory, one.name = run.name, shown
                for name in names:
                    self._known[place, name] = one

    def _follow(self) -> float:
        """Read summaries: those of runs that were never read first, then those of runs that go on. Return the seconds
        until that is due again."""
        try:
            pause, problem = self._look(), ""
        except Exception as error:  # noqa: BLE001 - the page shows it; the next look may succeed
            _log.exception("the runs cannot be followed; the next look may succeed")
            pause, problem = SEARCH_SECONDS, describe_error(error)
        if problem != self.problem:
            self.problem = problem
            self._changed(None)
        return pause

    def _look(self) -> float:
        """Read what is due, and return the seconds until the next look."""
        began, new = time.monotonic(), False
        for run in sorted(self.runs, key=lambda run: run.summary is not None):
            if self._ended.is_set():
                return 0.0
            if run.summary is None or run.summary.alive:
                new |= run.summary is None
                self.read(run)
                self._ended.wait(PAUSE_SECONDS)
        self._analyse_next()
        if (now := time.monotonic()) >= self._search_time:
            self._search_time = now + SEARCH_SECONDS
            self._search()
            self._search_time = time.monotonic() + max(SEARCH_SECONDS, SHARE * (time.monotonic() - now))
        return 1.0 if new else max(1.0, SHARE * (time.monotonic() - began))

    def _analyse_next(self) -> None:
        """Begin the analysis of the run that has changed last of those that were never analysed, if no task waits."""
        waiting = [run for run in self.runs if run.summary is not None and run.summary.changed and not run.analysed]
        if not waiting or not self.tasks.is_idle:
            return
        newest = max(waiting, key=lambda run: run.summary.changed if run.summary else 0.0)
        newest.analysed = True
        key = ("analysis", newest.place, newest.directory)
        if self.tasks.result(key) is None:
            with suppress(OSError, ValueError, RunGone):  # its page names it
                analysed(self.tasks, key, self._files_of(newest).look())

    def _rank_folders(self, folder: Place, depth: int = 0) -> Iterator[Place]:
        """Yield the folders in which ranks have written: ``folder``, or those in it."""
        if isinstance(folder, Path) and leads_out(folder):
            if folder not in self._outside:
                self._outside.add(folder)
                _log.warning("%s: a link out of the folders of this command: it is not followed", folder)
            return
        try:
            names = _names(folder)
            is_foreign = is_written_by_v2(folder) if names else False
        except OSError:
            return
        if INDEX in names or parsed_name(folder.name) or any(map(parsed_name, names)) or is_foreign:
            yield folder
        elif depth < DEEPEST:
            for name in names:
                if not name.startswith("."):
                    yield from self._rank_folders(folder / name, depth + 1)


def _names(folder: Place) -> list[str]:
    """Return the names in a folder, in order; none for a file.

    Raises:
        OSError: if it cannot be listed.
    """
    if isinstance(folder, Location):
        return [each.name for each in contents(folder)] if folder.is_dir() else []
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 - ten thousand folders
    except NotADirectoryError:
        return []


def _modified(folder: Place) -> float:
    """Return the time of the last change of a folder; 0 for one in object storage, which would be listed for it."""
    if isinstance(folder, Location):
        return 0.0
    try:
        return folder.stat().st_mtime
    except OSError:
        return 0.0
