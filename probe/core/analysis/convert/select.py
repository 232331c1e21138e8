"""Selection of files for a conversion: by rank, time and kind."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from os import PathLike
from pathlib import Path
from typing import NamedTuple

from probe.core.language import invalid, message
from probe.core.naming import SIGNALS
from probe.core.storage.chunks import files_in
from probe.core.storage.directories import RankDirectory, find
from probe.core.storage.layout import EXAMPLE, FORMATS, table_name
from probe.core.storage.location import MARK, Location, Place, located
from probe.core.storage.manifest import Manifest
from probe.core.storage.packed.run import packed_index
from probe.core.storage.problems import Problems
from probe.core.storage.run_directory import stamp
from probe.core.storage.sqlite_reader import last_steps
from probe.core.storage.table_files import TableFile

Observer = Callable[[int, int, str], None]
"""Function called with the number of items that are done, the number of all, and the name of the latest."""

DOCUMENTED = (*SIGNALS, "exp_avg", "exp_avg_sq")
"""Kinds that may be requested even if there are no files of them."""


class ConversionUnit(NamedTuple):
    """All files of one rank and kind."""

    rank: int
    kind: str
    files: list[tuple[RankDirectory, TableFile]]
    """Files in order of directory by time, then step."""


class Chosen(NamedTuple):
    """The directories and kinds of a conversion."""

    directories: list[RankDirectory]
    """By rank, then time."""
    kinds: dict[str, int]
    """Each kind, with the number of its files."""

    def units(self, problems: Problems) -> Iterator[ConversionUnit]:
        """Yield the files of every rank and kind; a rank's directories are read when it is its turn."""
        for rank, directories in groupby(self.directories, key=lambda directory: directory.rank):
            files: dict[str, list[tuple[RankDirectory, TableFile]]] = {kind: [] for kind in self.kinds}
            for directory in directories:
                for file in files_in(directory, problems):
                    if file.signal in files:
                        files[file.signal].append((directory, file))
            yield from (ConversionUnit(rank, kind, of_kind) for kind, of_kind in files.items() if of_kind)


def choose(
    monitor_path: str | PathLike[str] | Location,
    time_start: str | None,
    time_end: str | None,
    kinds: Sequence[str] | None,
    problems: Problems,
) -> Chosen:
    """Return the directories between two times, themselves included, and the existing kinds among ``kinds``.

    Raises:
        ValueError: if there is no file, or none of ``kinds``, or a kind is neither there nor documented.
    """
    root = checked_place("monitor_path", monitor_path)
    # Manifests are not needed here, and would be sent to the workers with every file.
    directories = [directory._replace(manifest=Manifest()) for directory in find(root, problems, time_start, time_end)]
    counts = Counter(kind for directory in directories for kind in _kinds_in(directory))
    for directory in directories:
        _record_databases(directory, problems)
    if not counts:
        problem = f"{root}: its {len(directories)} directories hold no files such as {EXAMPLE}"
        raise ValueError("\n".join([problem, *problems.lines()]))
    if kinds is None:
        return Chosen(directories, dict(sorted(counts.items())))
    unknown = [kind for kind in kinds if kind not in counts and kind not in DOCUMENTED]
    if unknown:
        names = ", ".join(sorted(counts))
        raise ValueError(f"data_type_list: there is no {', '.join(unknown)}; there are {names}: name some, with commas")
    if not set(kinds) & set(counts):
        raise ValueError(
            f"data_type_list: the run has no files of {', '.join(kinds)}; there are {', '.join(sorted(counts))}"
        )
    for kind in kinds:
        if kind not in counts:
            problems.add(root, message("there are no files of {kind}", kind=kind), skipped=False)
    return Chosen(directories, {kind: counts[kind] for kind in sorted(set(kinds)) if kind in counts})


def _record_databases(directory: RankDirectory, problems: Problems) -> None:
    """Record the databases of a directory, which are not converted: their rows are missing, unless files have them."""
    if directory.packed is not None:
        return
    names = [name for path in directory.path.iterdir() if (name := table_name(path.name))]
    for path, step in last_steps(directory.path).items():
        if not names:
            problem = message(
                "expected CSV or Parquet files; the rows of this rank are in a database, which is not converted"
            )
            problems.add(directory.path, problem)
        elif step > (last := max(name.last for name in names)):
            problem = message(
                "expected CSV or Parquet files of all steps; steps of this database after {last} are left out",
                last=last,
            )
            problems.add(path, problem)
        else:
            problem = message("a database is not converted: the files of the same steps are")
            problems.add(path, problem, skipped=False)


def _kinds_in(directory: RankDirectory) -> Iterator[str]:
    if directory.packed is not None:
        for signal, entry in packed_index(directory.path.parent).signals.items():
            number = entry.of[directory.packed]
            files = entry.sets[number] if number >= 0 else ()
            yield from (signal for name, _, _ in files if entry.names[name].format in FORMATS)
        return
    for path in directory.path.iterdir():
        table = table_name(path.name)
        if table and not path.name.startswith("."):
            yield table.signal


def output_folder(monitor_path: str | PathLike[str] | Location, given: str | PathLike[str] | None, suffix: str) -> Path:
    """Return ``given``, else ``{curtime}_{suffix}`` in ``monitor_path``, with the time as in names of directories.

    Raises:
        ValueError: if ``given`` is no path, or that of a file.
    """
    if given is not None:
        folder = checked_folder("output_dirpath", given)
        try:
            is_file = folder.exists() and not folder.is_dir()
        except OSError as error:  # no name that a file system could have
            raise invalid(
                "{folder}: expected a folder to write to; {strerror}", folder=folder, strerror=error.strerror
            ) from None
        if is_file:
            raise invalid("{folder}: expected a folder to write to; this is a file: name another", folder=folder)
        return folder
    root = checked_place("monitor_path", monitor_path)
    if isinstance(root, Location):
        raise invalid(
            "output_dirpath: expected a folder of this machine, since {root} is only read from; give one", root=root
        )
    return root / f"{stamp(time.time())}_{suffix}"


def checked_folder(key: str, value: object) -> Path:
    """Return ``value`` as a path, with the home directory for ``~``.

    Raises:
        ValueError: if it is no path, or an empty one.
    """
    if not isinstance(value, str | PathLike) or not str(value):
        raise invalid("{key}: expected the path of a folder, got {value!r}; give one", key=key, value=value)
    if MARK in str(value):
        raise invalid(
            "{key}: expected a folder of this machine, got a URL: nothing is written to object storage", key=key
        )
    return Path(value).expanduser()


def checked_place(key: str, value: object) -> Place:
    """Return ``value``, which may be a URL too.

    Raises:
        ValueError: if it is neither a path nor a URL.
    """
    if isinstance(value, Location):
        return value
    return located(value) if isinstance(value, str) and MARK in value else checked_folder(key, value)


def checked_number(key: str, value: object, low: int, high: int) -> int:
    """Return ``value``.

    Raises:
        ValueError: if it is no whole number from ``low`` to ``high``.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise invalid(
            "{key}: expected a whole number from {low} to {high}, got {value!r}; give one, or leave it out",
            key=key,
            low=low,
            high=high,
            value=value,
        )
    return value


def checked_kinds(value: object) -> tuple[str, ...] | None:
    """Return ``value`` as a tuple; None for all kinds.

    Raises:
        ValueError: if it is no list of names.
    """
    if value is None:
        return None
    if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(kind, str) for kind in value):
        raise invalid(
            'data_type_list: expected a list of names such as ["actv"], or None for all, got {value!r}', value=value
        )
    return tuple(value) or None
