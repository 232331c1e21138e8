"""Ranks of a node: their series, whether their processes live, and how long they have shown no progress.

Reading takes no lock, sends no signal and writes nothing: a rank cannot notice it.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from probe.core.messages import printable
from probe.core.output.metrics.catalogue import LAST_STEP, Series
from probe.core.output.metrics.mapped_file import MetricsReader, Values
from probe.core.process_identity import process_state
from probe.core.run_state.budget import Budget, stretches
from probe.core.run_state.progress_file import ENDED, RUNNING, ProgressReader, ProgressRow
from probe.core.run_state.watcher_process import SETTINGS
from probe.core.storage.files import json_of
from probe.services.exporter.rank_files import RankFile, RankFiles

GONE_SECONDS = 900.0
"""Time for which a rank that is gone without having ended is shown as such."""
FLOOR_SECONDS, STARTUP_SECONDS = 60.0, 1800.0
"""Shortest budget, and the budget of phases of which nothing is known, where no watcher has other settings."""

LONGEST_TEXT = 200
"""Most characters of the value of a label."""
MOST_DEVICES = 64
"""Most devices of a rank that are shown."""
_LAST_STEP = Series(LAST_STEP.name)
_NOTHING: Values = np.empty(0)
_UNKNOWN = -math.inf
"""Time of which nothing is known: before every other."""

_log = logging.getLogger("probe.exporter")
SEARCH_SECONDS = 30.0
"""Time between two searches for the same process among those of containers."""
INDEX_SECONDS = 1.0
"""Time for which the result of a search serves for other processes."""
Process = tuple[int, int]
"""Id and start of a process; the start in clock ticks since boot, which a later process of that id does not share."""


class ProgressView(NamedTuple):
    """Progress of a rank at the time of a scrape."""

    phase: str
    age: float
    """Seconds since its last sign."""
    budget: float
    """Seconds that this may last."""


class ShownRank(NamedTuple):
    """Rank at the time of a scrape."""

    job: str
    rank: int
    ranks: int
    host: str
    pid: int
    """Id of the process as it sees itself."""
    pid_here: int
    """Id of the process as the exporter sees it; 0 if it sees none."""
    up: bool | None
    """None: not known, since the process runs where the exporter cannot see it."""
    gpu_uuids: tuple[str, ...]
    series: tuple[Series, ...]
    values: Values
    progress: ProgressView | None


class _Rank:
    """Files and process of one rank."""

    def __init__(self, process: tuple[int, int], number: int) -> None:
        self.process, self.number = process, number
        self.metrics: MetricsReader | None = None
        self.progress: ProgressReader | None = None
        self.there: set[Path] = set()
        """Its files that are in the folder."""
        self.row: ProgressRow | None = None
        self.pid_here = 0
        self.gone = math.nan
        """Time at which it was found to be gone, of the monotonic clock."""

    def take(self, file: RankFile) -> None:
        """Use a file that is there."""
        self.there.add(file.path)
        if isinstance(file.reader, MetricsReader):
            self.metrics = file.reader
        elif isinstance(file.reader, ProgressReader):
            self.progress = file.reader

    def last_sign(self) -> float:
        """Return the time of the last sign of life, of the monotonic clock; ``_UNKNOWN`` if there is none, or if it was
        before the last start of this machine, where that clock began."""
        if self.row is not None:
            seconds = self.row.time / 1e9
            return seconds if seconds <= time.monotonic() else _UNKNOWN
        unix_times = [self._last_step()]
        for path in self.there:
            with suppress(OSError):
                unix_times.append(path.stat().st_mtime)
        return _monotonic(max(unix_times))

    def _last_step(self) -> float:
        """Return the time of the last step as its series has it, in Unix time."""
        series, values = self.metrics.read() if self.metrics is not None else ((), _NOTHING)
        return float(values[series.index(_LAST_STEP)]) if _LAST_STEP in series else _UNKNOWN

    @property
    def paths(self) -> list[Path]:
        return [reader.path for reader in (self.metrics, self.progress) if reader is not None]


def _monotonic(unix_time: float) -> float:
    """Return a Unix time as one of the monotonic clock; ``_UNKNOWN`` for one in the future: the clock was set back."""
    age = time.time() - unix_time
    return time.monotonic() - age if age >= 0 else _UNKNOWN


class NodeRanks:
    """All ranks of a node.

    Args:
        folders: called at each look; returns the folders with files of ranks, or the folders above them.
    """

    def __init__(self, folders: Callable[[], Sequence[Path]]) -> None:
        self.files = RankFiles(folders)
        self._processes, self._budgets = RankProcesses(), _Budgets()
        self._ranks: dict[tuple[Path, int, int, int], _Rank] = {}
        self._host = socket.gethostname()
        self.hidden = 0
        """Processes at the last look that are not shown, since another one has their job and rank."""

    def look(self) -> list[ShownRank]:
        """Return the ranks that run, or that went less than 15 minutes ago without having ended, in their order. Of two
        with the same job and rank, one that lives is shown, and of two that do the newer one."""
        self._match(self.files.look().values())
        views: dict[tuple[str, int], tuple[tuple[bool, int], ShownRank]] = {}
        self.hidden = 0
        for key, rank in list(self._ranks.items()):
            try:
                view = self._view(rank)
            except Exception as error:  # noqa: BLE001 - the other ranks are shown all the same
                _log.info("rank %d of process %d is left out: %s", rank.number, rank.process[0], error)
                self.files.unreadable += 1
                continue
            if view is None:
                self._drop(key)
                continue
            age = (view.up is not False, rank.process[1])
            place = view.job, view.rank
            self.hidden += place in views
            if place not in views or views[place][0] < age:
                views[place] = age, view
        return [view for _, (_, view) in sorted(views.items())]

    def _match(self, files: Iterable[RankFile]) -> None:
        """Assign the files to their ranks."""
        for rank in self._ranks.values():
            rank.there.clear()
        for file in files:
            if file.reader is not None:
                header = file.reader.header
                key = file.path.parent, header.pid, header.started, header.rank
                process = header.pid, header.started
                self._ranks.setdefault(key, _Rank(process, header.rank)).take(file)

    def _drop(self, key: tuple[Path, int, int, int]) -> None:
        rank = self._ranks.pop(key)
        self._processes.forget(rank.process)
        for path in rank.paths:
            self.files.forget(path)

    def _view(self, rank: _Rank) -> ShownRank | None:
        """Return a rank as it is now; None if it has ended or was gone long ago."""
        rank.row = rank.progress.row() if rank.progress is not None else None
        if rank.row is not None and rank.row.way == ENDED:
            return None
        pid_here = self._processes.find(rank.process)
        rank.pid_here = pid_here or rank.pid_here
        up: bool | None = bool(pid_here)
        if up:
            rank.gone = math.nan
            if not rank.there:  # it has removed its files
                return None
        elif self._is_elsewhere(rank):
            up = None
            if not rank.there or time.monotonic() - rank.last_sign() > GONE_SECONDS:
                return None
        elif not self._is_lost(rank):
            return None
        return self._made(rank, up, pid_here)

    def _is_elsewhere(self, rank: _Rank) -> bool:
        """Return whether a rank runs in a container whose processes cannot be seen from here."""
        return not rank.pid_here and rank.metrics is not None and rank.metrics.header.host != self._host

    def _is_lost(self, rank: _Rank) -> bool:
        """Return whether a rank without a process went without having ended, and not long ago. One that has ended
        removes its files, but the watcher removes the progress of others too."""
        orderly = not rank.there if rank.row is None else rank.row.way != RUNNING
        if orderly:
            return False
        now = time.monotonic()
        if math.isnan(rank.gone):
            rank.gone = now if rank.pid_here else rank.last_sign()
        return now - rank.gone < GONE_SECONDS

    def _made(self, rank: _Rank, up: bool | None, pid_here: int) -> ShownRank:
        metrics, progress = rank.metrics, rank.progress
        reader = metrics or progress
        assert reader is not None, "a rank is made of a file"
        series, values = metrics.read() if metrics is not None and up is not False else ((), _NOTHING)
        return ShownRank(
            job=short(reader.header.job),
            rank=rank.number,
            ranks=reader.header.ranks,
            host=str(metrics.header.host) if metrics is not None else self._host,
            pid=rank.process[0],
            pid_here=pid_here,
            up=up,
            gpu_uuids=metrics.header.gpu_uuids[:MOST_DEVICES] if metrics is not None else (),
            series=series,
            values=values,
            progress=self._progress(progress, rank.row) if progress is not None and up is not False else None,
        )

    def _progress(self, reader: ProgressReader, row: ProgressRow | None) -> ProgressView | None:
        if row is None:
            return None
        now = time.monotonic_ns()
        age = max(0.0, (now - row.time) / 1e9)
        seconds = self._budgets.of(reader.path.parent).left(row, stretches(reader.counts(row.phase)), now)
        return ProgressView(row.phase, age, max(0.0, round(age + seconds, 3)))


def short(text: str) -> str:
    """Return ``text`` as it is shown: of bounded length and without control characters."""
    return printable(text[:LONGEST_TEXT])[:LONGEST_TEXT]


class _Budgets:
    """Budgets of the ranks of a folder, as its watcher has them, as far as its settings can be read."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[tuple[int, int], Budget]] = defaultdict(
            lambda: ((0, 0), Budget(FLOOR_SECONDS, STARTUP_SECONDS))
        )

    def of(self, folder: Path) -> Budget:
        """Return the budget of the ranks of ``folder``."""
        path = folder / SETTINGS
        mark, budget = self._known[folder]
        try:
            status = os.stat(path)  # noqa: PTH116 - as its neighbours
            if (status.st_ino, status.st_mtime_ns) != mark:
                settings = json_of(path)
                budget = Budget(float(settings["floor_seconds"]), float(settings["startup_seconds"]))
                self._known[folder] = (status.st_ino, status.st_mtime_ns), budget
        except (OSError, ValueError, KeyError, TypeError):  # no watcher, or one of another user
            pass
        return budget


class RankProcesses:
    """Finder of processes. Nothing here signals a process or waits for one."""

    def __init__(self) -> None:
        self._ids: dict[Process, int] = {}
        self._searched: dict[Process, float] = {}
        self._index: dict[Process, int] = {}
        self._indexed = -INDEX_SECONDS

    def find(self, process: Process) -> int:
        """Return the id of a living process here; 0 if there is none."""
        for pid in (self._ids.get(process, 0), process[0]):
            if pid and _is_alive(pid, process[1]):
                self._ids[process] = pid
                return pid
        if self._ids.pop(process, 0):
            return 0  # it has ended
        now = time.monotonic()
        if now - self._searched.get(process, -SEARCH_SECONDS) < SEARCH_SECONDS:
            return 0
        self._searched[process] = now
        if now - self._indexed >= INDEX_SECONDS:
            self._index, self._indexed = dict(_inner_processes()), now
        if pid := self._index.get(process, 0):
            self._ids[process] = pid
        return pid

    def forget(self, process: Process) -> None:
        """Release memory of a process."""
        self._ids.pop(process, None)
        self._searched.pop(process, None)


def _is_alive(pid: int, started: int) -> bool:
    state = process_state(pid)
    return state.started == started and state.alive


def _inner_processes() -> Iterator[tuple[Process, int]]:
    """Yield the processes that have another id inside a container: that id and the start, and the id here."""
    for place in Path("/proc").iterdir():
        if not place.name.isdecimal():
            continue
        try:
            status = (place / "status").read_text("utf-8", errors="replace")
        except OSError:
            continue
        inner = status.partition("\nNSpid:")[2].partition("\n")[0].split()
        if len(inner) > 1:
            yield (int(inner[-1]), process_state(int(place.name)).started), int(place.name)
