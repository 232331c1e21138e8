"""Assignment of entries of ``anomaly.json`` to runs: all runs of a directory share the file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache

from probe.core.language import invalid
from probe.core.messages import printable
from probe.core.storage.anomaly_json import FOLDER, Entry, read
from probe.core.storage.directories import RankDirectory, RecordedRun, find, runs
from probe.core.storage.location import Place
from probe.core.storage.manifest import Manifest
from probe.core.storage.problems import Problems
from probe.core.storage.run_directory import parsed_time

ALL = "all"
"""Name that stands for every run."""


def belongs(run: RecordedRun) -> Callable[[Entry], bool | None]:
    """Return a judge of entries: True for an entry of ``run`` whose step was not done again after a resume; None if the
    entry names no run."""
    directory_of = _finder(run.directories)

    def judge(entry: Entry) -> bool | None:
        if not entry.run:
            return None
        directory = directory_of(entry)
        return directory is not None and (directory.until is None or entry.step < directory.until)

    return judge


def _finder(directories: Iterable[RankDirectory]) -> Callable[[Entry], RankDirectory | None]:
    """Return a function that finds the directory of an entry among ``directories``: the one of that name or, if it has
    been renamed since, the one of the entry's rank whose run began at the entry's time."""
    named = {directory.path.name: directory for directory in directories}
    begun = {(first.rank, first.manifest.start_time): first for first in named.values()}
    roots = {directory.path.parent for directory in named.values()}

    @cache
    def find_it(name: str, rank: int, start: str | None) -> RankDirectory | None:
        if name in named or any((root / name).exists() for root in roots):
            return named.get(name)
        return begun.get((rank, start))

    return lambda entry: find_it(entry.run, entry.rank, entry.typed.get("start"))


def known(root: Place, entries: Iterable[Entry]) -> list[RecordedRun]:
    """Return the runs in an output directory and those of ``entries``, whose directories may be gone; the latest last.

    Args:
        root: ``anomaly_detected``, or the output directory that holds it.
    """
    inside = root.parent if root.absolute().name == FOLDER else root
    named: dict[str, RankDirectory] = {}
    with suppress(ValueError):  # none is there
        named = {directory.path.name: directory for directory in find(inside, Problems())}
    directory_of = _finder(named.values())
    for entry in entries:
        if entry.run and entry.run not in named and directory_of(entry) is None:
            first, began = int(entry.typed.get("first_step", 0)), 0.0
            with suppress(ValueError):
                began = parsed_time(str(entry.typed.get("start")))
            named[entry.run] = RankDirectory(inside / entry.run, entry.rank, "", began, Manifest(), first)
    return runs(named.values())


def chosen(runs: list[RecordedRun], name: str) -> RecordedRun:
    """Return the run of which a directory's name begins with ``name``; the latest one if that is empty.

    Raises:
        ValueError: if there is none, or more than one.
    """
    fitting = [run for run in runs if any(directory.path.name.startswith(name) for directory in run.directories)]
    if len(fitting) == 1 or (fitting and not name):
        return fitting[-1]
    trouble = f"there are {len(fitting)} such runs" if fitting else "there is no such run"
    names = ", ".join(printable(run.name) for run in (fitting or runs)[-10:]) or "none that is named"
    raise invalid(
        "--run: expected how a directory of one run begins, or {all}; {trouble} as {name!r}, of {names}",
        all=ALL,
        trouble=trouble,
        name=name,
        names=names,
    )


class Kept:
    """The findings of one run, one after the other, with their keys; those of other runs are counted on the way.

    If no finding names its run (files of older versions), all are taken.

    Args:
        root: ``anomaly_detected``, or the output directory that holds it.
        name: beginning of the names of the run's directories; empty for the latest run, ``all`` for every run.

    Raises:
        ValueError: if there is no such run, or more than one; or no finding at all.
    """

    def __init__(self, root: Place, problems: Problems, name: str = "") -> None:
        self._root, self._problems = root, problems
        self.number = 0
        """Findings that were taken."""
        self._others = self._unknown = 0
        of_runs = {entry.run: entry for _, entry in read(root, Problems())}
        runs = known(root, of_runs.values())
        self._run = None if name == ALL or (not name and not any(of_runs)) else chosen(runs, name)
        every = "all runs" if name == ALL else "the run, or the runs, that they do not name"
        self.of = f"run {self._run.name}" if self._run else every
        """The run of the findings, in words."""

    def __iter__(self) -> Iterator[tuple[str, Entry]]:
        is_own = belongs(self._run) if self._run else None
        for key, entry in read(self._root, self._problems):
            is_of_run = is_own(entry) if is_own else True
            self.number += is_of_run is True
            self._others += is_of_run is False
            self._unknown += is_of_run is None
            if is_of_run:
                yield key, entry

    def left_out(self) -> list[str]:
        """Return sentences about the findings that were left out."""
        numbers = [(self._others, "of other runs"), (self._unknown, "of unnamed runs")]
        return [f"{n:,} finding{'s' * (n > 1)} left out, {reason}: --run all has them" for n, reason in numbers if n]
