"""Directories in which ranks have written, and the runs that they form."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from probe.core.language import invalid, joined, message
from probe.core.messages import in_number, spans, writable
from probe.core.storage import sqlite_reader
from probe.core.storage.layout import EXAMPLE
from probe.core.storage.location import Place, contents, fetch_ahead
from probe.core.storage.manifest import FILE, Manifest
from probe.core.storage.packed.run import is_packed, packed_index
from probe.core.storage.problems import Problems
from probe.core.storage.run_directory import (
    EXAMPLE_DIRECTORY,
    EXAMPLE_TIME,
    ZONE,
    parsed_name,
    parsed_stamp,
    parsed_time,
    read_manifest,
)
from probe.core.storage.sql import pattern_of
from probe.core.storage.table_files import first_step, has_tables
from probe.core.storage.v2_layout import translated

TOGETHER = 3600.0
"""Seconds within which the ranks of a run begin, if nothing else shows which directories belong together."""


class RankDirectory(NamedTuple):
    """The directory in which one rank has written in one run of a program."""

    path: Place
    rank: int
    time: str
    """Time in the directory's name, such as ``Dec03_21-34-40``, in UTC+08:00; empty if it has none."""
    began: float
    """Seconds since the epoch, by the clock of the rank's machine; 0 if unknown."""
    manifest: Manifest
    """Empty for the directories of tools that write none."""
    first_step: int
    """The first step of which it has a row."""
    until: int | None = None
    """The step from which a later directory of the rank continues (the run was resumed there): the steps of this
    directory from there on were done again. None if there is no later directory."""
    packed: int | None = None
    """Number of the directory in a packed run; None for a directory that exists."""


class RecordedRun(NamedTuple):
    """The directories of all ranks of one run."""

    directories: tuple[RankDirectory, ...]
    """By rank; those of a rank that was resumed in order of time."""
    missing: tuple[int, ...]
    """Ranks that should have written and have no directory."""

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(directory.rank for directory in self.directories))

    @property
    def name(self) -> str:
        """The name of the run's first directory."""
        return min(self.directories, key=lambda directory: directory.began).path.name

    def of(self, rank: int) -> tuple[RankDirectory, ...]:
        """Return the directories of one rank, in order of time; for all ranks see :meth:`by_rank`."""
        return tuple(directory for directory in self.directories if directory.rank == rank)

    def by_rank(self) -> dict[int, list[RankDirectory]]:
        """Return the directories of each rank, in order of time."""
        by_rank: dict[int, list[RankDirectory]] = {}
        for directory in self.directories:
            by_rank.setdefault(directory.rank, []).append(directory)
        return by_rank

    @property
    def ended(self) -> bool:
        """True if every rank has ended."""
        return all(of_rank[-1].manifest.ended for of_rank in self.by_rank().values())


_RECORDED = ("ops", "wg_distribution", "xy_distribution", "mv_distribution", "param_distribution")
"""Keys of a configuration that say which numbers a rank records."""
ARCHIVES = (".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".zst")
"""Endings of the names of archives."""


def find(
    root: Place, problems: Problems, time_start: str | None = None, time_end: str | None = None, pattern: str = "*"
) -> list[RankDirectory]:
    """Return every rank's directory in ``root``, or ``root`` itself if it is one; by rank, then time. Folders of
    msprobe's Monitor V2 are read from a translation, unless there are directories of ranks beside them.

    Args:
        time_start: the earliest time in a directory's name, such as ``Dec03_21-34-40``, itself included.
        time_end: the latest time, itself included. January after a ``time_start`` in December is the next January.
        pattern: pattern of the names of the directories that are searched.

    Raises:
        ValueError: if there is no such directory, if it has none of a rank, or if a time cannot be parsed.
    """
    root = place(root)
    if not root.is_dir():
        if root.is_file():
            text = message("this is a file: give MONITOR_OUTPUT_DIR of the run")
            if root.suffix.lower() in ARCHIVES:
                text = message("this is an archive: unpack it, and give the directory")
            expected = "{root}: expected the directory in which ranks have written; {text}"
            raise invalid(expected, root=root, text=text)
        advice = message("give MONITOR_OUTPUT_DIR")
        if " " in root.name and "from" in root.name.lower():
            advice = message("give MONITOR_OUTPUT_DIR, and the query behind it")
        if not isinstance(root, Path):
            advice = message("nothing is listed there: check the bucket")
        raise invalid(
            "{root}: expected the directory in which ranks have written; there is none of this name: {advice}",
            root=root,
            advice=advice,
        )
    full = str(root.absolute() if isinstance(root, Path) else root)
    if full != writable(full):
        raise invalid(
            "{root}: expected a path in UTF-8, since DuckDB reads no other: rename the folder", root=writable(full)
        )
    within = _interval(time_start, time_end)
    if is_packed(root):
        return _found_in_pack(root, problems, within, (time_start, time_end), pattern)
    root = translated(root, problems)
    inside = [path for path in contents(root, pattern) if path.is_dir()]
    fetch_ahead(path / FILE for path in inside)
    alone = _read(root, problems)
    directories = [alone] if alone else [directory for path in inside if (directory := _read(path, problems))]
    within_times = [directory for directory in directories if not directory.time or within(directory.time)]
    if not within_times:
        raise ValueError(joined("\n", [_nothing(root, directories, time_start, time_end), *problems.lines()]))
    return sorted(_without_copies(within_times, problems), key=_in_time)


def _found_in_pack(
    root: Place,
    problems: Problems,
    within: Callable[[str], bool],
    times: tuple[str | None, str | None],
    pattern: str,
) -> list[RankDirectory]:
    """Return the directories whose rows are in a packed run, as :func:`find` does."""
    index = packed_index(root)
    fields = index.directories
    names = [n for n, name in enumerate(fields["name"]) if pattern == "*" or fnmatchcase(name, pattern)]
    directories = [
        RankDirectory(
            root / fields["name"][n],
            fields["rank"][n],
            fields["time"][n],
            fields["began"][n],
            index.manifest(n),
            fields["first_step"][n],
            packed=n,
        )
        for n in names
    ]
    index.record_problems("found", problems)
    within_times = [directory for directory in directories if not directory.time or within(directory.time)]
    if not within_times:
        raise ValueError("\n".join([_nothing(root, directories, *times), *problems.lines()]))
    return sorted(within_times, key=_in_time)


def _without_copies(directories: Sequence[RankDirectory], problems: Problems) -> list[RankDirectory]:
    """Drop directories that are copies of others: no two runs write the same manifest at their end, since it has the
    run's own cost to the microsecond."""
    originals: dict[object, RankDirectory] = {}
    for directory in sorted(directories, key=lambda copy: (not copy.time, copy.path.name)):
        ended = directory.manifest.cost_seconds and directory.manifest.start_time is not None
        identity = json.dumps(directory.manifest, sort_keys=True) if ended else directory.path
        original = originals.setdefault(identity, directory)
        if original is not directory:
            problems.add(directory.path, message("a copy of {name}: left out", name=original.path.name), skipped=False)
    return list(originals.values())


def place(root: Place) -> Place:
    """Return ``root`` as paths in it begin; ``.`` and ``..`` are resolved, since their names cannot contain a rank. A
    path that begins with a pattern's characters becomes absolute: DuckDB 1.5 finds it as ``./`` and so on."""
    root = root.expanduser()
    if not root.name or ".." in root.parts:
        return root.resolve()
    return root.absolute() if pattern_of(root.parts[0]) != root.parts[0] else root


def runs(directories: Iterable[RankDirectory]) -> list[RecordedRun]:
    """Group ``directories`` into runs; the run that began last is the last.

    A directory of a rank continues the one before it if it begins at a later step; else a new run begins. If all ranks
    have equally many runs, the n-th runs of all ranks belong together, whatever their clocks show; else those that
    began within an hour of each other. Processes and models without a rank that wrote side by side are one run.
    """
    directories = [*directories]
    beside = _beside(directories)
    apart = {directory_beside.path for others in beside.values() for directory_beside in others}
    chains: dict[int, list[list[RankDirectory]]] = {}
    for directory in sorted((directory for directory in directories if directory.path not in apart), key=_in_time):
        chain = chains.setdefault(directory.rank, [])
        if chain and directory.first_step > chain[-1][-1].first_step:
            chain[-1][-1] = chain[-1][-1]._replace(until=directory.first_step)
            chain[-1].append(directory)
        else:
            chain.append([directory])
    recorded: list[RecordedRun] = []
    while chains:
        newest, alike = max(chain[-1][0].began for chain in chains.values()), len({*map(len, chains.values())}) == 1
        ranks = [rank for rank, chain in chains.items() if alike or newest - chain[-1][0].began < TOGETHER]
        last = tuple(directory for rank in ranks for directory in chains[rank].pop())
        last += tuple(twin for directory in last for twin in beside.get(directory.path, ()))
        recorded.append(RecordedRun(last, tuple(sorted(_expected(last) - set(ranks)))))
        chains = {rank: chain for rank, chain in chains.items() if chain}
    return recorded[::-1]


def _beside(directories: Iterable[RankDirectory]) -> dict[Place, list[RankDirectory]]:
    """Return the directories of processes without a launcher, and of further models of a process, that overlap in time
    with one before: by the path of that, each with a rank of its own. What overlaps is no earlier run. A process that
    has not ended, or was killed, overlaps with later ones of the same program under ``probe run``; so does one whose
    own number in the program, which is its rank, is another."""
    beside: dict[Place, list[RankDirectory]] = {}
    first, end, open_programs = None, 0.0, set[str]()
    numbers = set[tuple[str, int]]()
    in_order = sorted(directories, key=lambda directory: (directory.began, *_in_time(directory)))
    highest = max((directory.rank for directory in in_order), default=0)
    for directory in in_order:
        program, ended = directory.manifest.program, directory.manifest.get("end_time") is not None
        is_alone = directory.manifest.world_size == 1 and (not directory.rank or bool(program))
        if not is_alone or directory.packed is not None:
            continue
        number = program, directory.rank
        is_numbered = bool(directory.rank) and number not in numbers and (program, 0) in numbers
        if first is None or (directory.began >= end and program not in open_programs and not is_numbered):
            first, end, open_programs = directory.path, _end(directory), set() if ended or not program else {program}
            numbers = {number}
            continue
        others = beside.setdefault(first, [])
        others.append(directory if is_numbered else directory._replace(rank=highest + len(others) + 1))
        numbers.add(number)
        end = max(end, _end(directory))
        if program and not ended:
            open_programs.add(program)
    return beside


def _end(directory: RankDirectory) -> float:
    """Return the time, in seconds since the epoch, until which a run has written; that of its beginning if it has not
    ended, as after a kill: times of files change when they are copied."""
    text = directory.manifest.get("end_time")
    if isinstance(text, str):
        with suppress(ValueError):
            return max(parsed_time(text), directory.began)
    return directory.began


def _in_time(directory: RankDirectory) -> tuple[int, float, int, int, str]:
    """Return the sort key: rank, then time; within a second, the number of the attachment, then the step."""
    return (directory.rank, directory.began, directory.manifest.attachment, directory.first_step, directory.path.name)


def last_run(root: Place, problems: Problems, directory: str = "") -> RecordedRun:
    """Return the run in ``root`` that began last; other runs and missing ranks are recorded in ``problems``.

    Args:
        directory: name of a directory of the run that is returned instead; then no other run is recorded.

    Raises:
        ValueError: as :func:`find`, and if no run has ``directory``.
    """
    *others, last = runs(find(root, problems))
    if directory:
        last = _with_directory([*others, last], root, directory)
    else:
        record_earlier(others, root, problems)
    if is_packed(place(root)):
        packed_index(place(root)).record_problems("chosen", problems)
    if last.missing:
        problems.add(root, message("expected ranks {ranks} too; there is nothing of them", ranks=listed(last.missing)))
    if odd := _configured_otherwise(last):
        text = "expected one configuration on all ranks, got other ops or switches on ranks {ranks}: give all the same"
        problems.add(root, message(text, ranks=listed(odd)), skipped=False)
    return _without_empty(last, problems)


def _configured_otherwise(run: RecordedRun) -> list[int]:
    """Return the ranks that have recorded other numbers than most, as far as their manifests say."""
    ranks: dict[str, list[int]] = {}
    for rank, directories in run.by_rank().items():
        if config := directories[-1].manifest.config:
            ranks.setdefault(json.dumps([config.get(key) for key in _RECORDED]), []).append(rank)
    _, *others = sorted(ranks.values(), key=len, reverse=True) or [[]]
    return sorted(rank for group in others for rank in group)


def _with_directory(recorded: Iterable[RecordedRun], root: Place, name: str) -> RecordedRun:
    for run in recorded:
        if any(directory.path.name == name for directory in run.directories):
            return run
    raise invalid("{root}: expected the directory of a rank; there is none of this name any more", root=root / name)


def record_earlier(others: Iterable[RecordedRun], root: Place, problems: Problems) -> None:
    """Record runs that are left out, since a later one is read."""
    for run in others:
        singular = "of an earlier run (of {number} rank), left out; give each run a MONITOR_OUTPUT_DIR of its own"
        plural = "of an earlier run (of {number} ranks), left out; give each run a MONITOR_OUTPUT_DIR of its own"
        problems.add(root / run.name, in_number(len(run.ranks), singular, plural), skipped=False)


def ranks_with_rows(directories: Sequence[RankDirectory]) -> set[int]:
    """Return the ranks whose directories have files or databases with rows; of a packed run by its index, opened
    once."""
    packed = [(directory.rank, directory.packed) for directory in directories if directory.packed is not None]
    written = packed_index(directories[0].path.parent).directories["written"] if packed else ()
    unpacked = [directory for directory in directories if directory.packed is None]
    ranks = {folder.rank for folder in unpacked if has_tables(folder.path) or sqlite_reader.may_have_rows(folder.path)}
    return ranks | {rank for rank, number in packed if written[number]}


def _without_empty(run: RecordedRun, problems: Problems) -> RecordedRun:
    """Drop the ranks that have made a directory but written no table, if other ranks have written some."""
    written = ranks_with_rows(run.directories)
    expected = _expected(run.directories)
    last_of = {empty.rank: empty for empty in run.directories if empty.rank not in written}
    empty = {rank: last for rank, last in last_of.items() if rank in expected or not expected}
    if not written or not empty:
        return run
    for rank, last in empty.items():
        trouble = message(
            "expected files such as {example}; rank {rank} has written nothing: left out", example=EXAMPLE, rank=rank
        )
        if healthy := bool(last.manifest.config.get("history")):  # only steps near a finding are written
            trouble = message(
                "rank {rank} has found nothing, and with history it has written nothing: left out", rank=rank
            )
        problems.add(last.path, trouble, skipped=not healthy)
    full = tuple(directory for directory in run.directories if directory.rank not in empty)
    return RecordedRun(full, tuple(sorted({*run.missing, *empty})))


def listed(ranks: Sequence[int]) -> str:
    """Return ranks as text: ``0-3, 7``."""
    return ", ".join(spans(ranks))


def _expected(directories: Iterable[RankDirectory]) -> set[int]:
    """Return the ranks that should have written, according to the manifests."""
    configured = (
        (directory.manifest.config.get("module_ranks"), directory.manifest.world_size or 0) for directory in directories
    )
    expected: set[int] = set()
    most = 0  # ranks that all should have written
    for (ranks, world), _ in groupby(configured):  # each rank names all: as a rule the same ones as the rank before
        numbers = [rank for rank in ranks if isinstance(rank, int)] if isinstance(ranks, list) else []
        expected.update(rank for rank in numbers if 0 <= rank < world)
        most = most if numbers else max(most, world)
    return expected.union(range(most))


def _read(path: Place, problems: Problems) -> RankDirectory | None:
    """Return the rank's directory at ``path``; None for another directory."""
    named, manifest = parsed_name(path.name), read_manifest(path, problems)
    if manifest is None or (named is None and manifest.rank is None):
        return None
    time, rank = named or ("", 0)
    rank = rank if manifest.rank is None else manifest.rank
    began = _began(manifest.start_time, time, path)
    first = manifest.first_step
    first = first_step(path) or _first_of_database(path) if first is None else first
    return RankDirectory(path, rank, time, began, manifest, first)


def _first_of_database(path: Place) -> int:
    try:
        return sqlite_reader.first_step(path) or 0
    except (*sqlite_reader.UNREADABLE, OSError):  # nothing is lost: reading the file names the defect
        return 0


def _began(text: str | None, name: str, path: Place) -> float:
    """Return seconds since the epoch; 0 if neither the manifest's time nor the directory's name can be parsed."""
    try:
        if text is not None:
            return parsed_time(text)
        year = datetime.fromtimestamp(path.stat().st_mtime, ZONE).year
        return parsed_stamp(name, year).timestamp() if name else 0.0
    except ValueError:
        return 0.0


def _interval(start: str | None, end: str | None) -> Callable[[str], bool]:
    first = _time("time_start", start) if start else None
    last = _time("time_end", end) if end else None
    if first and last and first > last and (first.month, last.month) != (12, 1):
        raise invalid(
            "time_end: expected one after time_start, {start}; got {end}: exchange them", end=end, start=start
        )
    around = bool(first and last and first > last)

    def within(time: str) -> bool:
        moment = _time("directory", time)
        after, before = first is None or moment >= first, last is None or moment <= last
        return (after or before) if around else (after and before)

    return within


@lru_cache(maxsize=4096)  # the ranks of a run begin within few seconds
def _time(key: str, text: str) -> datetime:
    try:
        return parsed_stamp(text, 2000)  # a leap year: Feb29 is a day
    except ValueError:
        raise invalid(
            "{key}: expected a time such as {example_time}; got {text!r}; leave it out for no limit",
            key=key,
            example_time=EXAMPLE_TIME,
            text=text,
        ) from None


def _nothing(root: Place, directories: Sequence[RankDirectory], start: str | None, end: str | None) -> str:
    if directories:
        times = sorted(directory.time for directory in directories)
        return message(
            "{root}: no directory from {start} to {end}; there are {first} to {last}",
            root=root,
            start=start or message("the first"),
            end=end or message("the last"),
            first=times[0],
            last=times[-1],
        )
    return message(
        "{root}: expected directories such as {example}, as a monitored run writes (MONITOR_OUTPUT_DIR); found none: "
        "give that of a run",
        root=root,
        example=EXAMPLE_DIRECTORY,
    )
