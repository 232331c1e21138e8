"""The files of all ranks into curves for TensorBoard, a folder a rank and kind."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from os import PathLike
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from probe.core.convert.choosing import Told, Unit, checked_kinds, checked_number, choose, output_folder
from probe.core.convert.csv2db import MOST_PROCESSES
from probe.core.convert.curves import CurveFile
from probe.core.convert.parsing import parse, pieces
from probe.core.convert.rows import Rows
from probe.core.convert.workers import WorkersDiedError, in_order
from probe.core.reading.directories import RankDirectory
from probe.core.reading.files import TableFile
from probe.core.reading.problems import Problems
from probe.core.sinks.event_files import file_name

logger = logging.getLogger("probe.convert")

Steps = npt.NDArray[np.int64]


@dataclass
class Converted:
    """What a conversion has done."""

    path: Path
    """The folder that TensorBoard is given."""
    problems: Problems = field(default_factory=Problems)
    rows: int = 0
    files: int = 0


def csv2tensorboard_by_step(
    monitor_path: str | PathLike[str],
    time_start: str | None = None,
    time_end: str | None = None,
    process_num: int = 1,
    data_type_list: Sequence[str] | None = None,
    output_dirpath: str | PathLike[str] | None = None,
) -> Converted:
    """As :func:`convert`; what is wrong is logged."""
    done = convert(monitor_path, time_start, time_end, process_num, data_type_list, output_dirpath)
    for line in done.problems.lines():
        logger.warning("%s", line)
    return done


def convert(
    monitor_path: str | PathLike[str],
    time_start: str | None = None,
    time_end: str | None = None,
    process_num: int = 1,
    data_type_list: Sequence[str] | None = None,
    output_dirpath: str | PathLike[str] | None = None,
    told: Told | None = None,
) -> Converted:
    """Writes ``rank{rank}/{kind}/events...``; what cannot be read is reported, and the rest is converted.

    Args:
        monitor_path: the directory in which the ranks have written; ``~`` is the home directory.
        time_start: earliest directory, such as ``Dec03_21-34-40``, itself included; None for no limit.
        time_end: latest directory, itself included; None for no limit.
        process_num: processes that convert.
        data_type_list: kinds, by the prefix of their files; None for all.
        output_dirpath: None for ``{curtime}_csv2tensorboard_by_step`` in ``monitor_path``.
        told: is told how many folders are done.

    Raises:
        ValueError: if a value is not what it must be, there is nothing to convert, or the output has curves of the same
            ranks and kinds already.
    """
    checked_number("process_num", process_num, 1, MOST_PROCESSES)
    problems = Problems()
    chosen = choose(monitor_path, time_start, time_end, checked_kinds(data_type_list), problems)
    done = Converted(output_folder(monitor_path, output_dirpath, "csv2tensorboard_by_step"), problems)
    ranks = {directory.rank for directory in chosen.directories}
    total = len(ranks) * len(chosen.kinds)
    for rank in ranks:
        for kind in chosen.kinds:
            _check_empty(_folder(done.path, rank, kind))
    works = (_Work(unit, _folder(done.path, unit.rank, unit.kind)) for unit in chosen.units(problems))
    try:
        for number, (work, outcome) in enumerate(in_order(_convert, works, min(process_num, total)), 1):
            _gather(done, work, outcome)
            if told:
                told(number, total, f"rank{work.unit.rank}/{work.unit.kind}")
    except WorkersDiedError as died:
        problems.add(done.path, f"{died}: not all is converted")
    return done


class _Work(NamedTuple):
    unit: Unit
    folder: Path


class _Trouble(NamedTuple):
    path: Path
    what: str
    line: int | None = None
    skipped: bool = True


class _Outcome(NamedTuple):
    rows: int
    files: int
    troubles: list[_Trouble]


def _folder(root: Path, rank: int, kind: str) -> Path:
    return root / f"rank{rank}" / quote(kind, safe="")


def _check_empty(folder: Path) -> None:
    if folder.is_dir() and any("tfevents" in path.name for path in folder.iterdir()):
        raise ValueError(
            f"{folder}: there are curves already, and every point would be there twice: choose another output"
        )


def _gather(done: Converted, work: _Work, outcome: _Outcome | Exception) -> None:
    if isinstance(outcome, Exception):
        done.problems.add(work.folder, f"{type(outcome).__name__}: {outcome}: left out")
        return
    done.rows += outcome.rows
    done.files += outcome.files
    for trouble in outcome.troubles:
        done.problems.add(*trouble)


def _convert(work: _Work) -> _Outcome:
    """One rank and kind, the last directory first, because what that has earlier ones need not give."""
    converter = _Converter(work.folder)
    for (directory, _), own in reversed(_parts(work.unit)):
        converter.convert(directory, own)
    return _Outcome(converter.rows, converter.files, converter.troubles)


def _parts(unit: Unit) -> list[tuple[tuple[RankDirectory, str], list[TableFile]]]:
    """The files of each directory, those of each format apart: what a run has written in two is given once, by the
    Parquet files, which have all digits."""
    places = {directory.path: place for place, (directory, _) in enumerate(unit.files)}
    ordered = sorted(unit.files, key=lambda pair: (places[pair[0].path], pair[1].format))
    grouped = groupby(ordered, key=lambda pair: (pair[0], pair[1].format))
    return [(part, [file for _, file in pairs]) for part, pairs in grouped]


class _Converter:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._done: Steps = np.array([], dtype=np.int64)
        """Steps that are written: eight bytes each are all that is kept of them."""
        self._later: Path | None = None
        """The directory that was converted last."""
        self.rows = self.files = 0
        self.troubles: list[_Trouble] = []

    def convert(self, directory: RankDirectory, files: Sequence[TableFile]) -> None:
        """Writes the event file of one directory, under its name only when it is complete."""
        self._folder.mkdir(parents=True, exist_ok=True)
        target = self._folder / file_name(directory.began)
        hidden = self._folder / f".{os.getpid()}.tmp"
        before = self.rows
        steps: list[Steps] = []
        try:
            with hidden.open("wb") as opened:
                curves = CurveFile(opened, directory.began)
                for file in files:
                    steps.append(self._file(file, directory, curves))
            if self.rows > before:
                hidden.replace(target)
        finally:
            hidden.unlink(missing_ok=True)
        again = np.intersect1d(np.concatenate(steps), self._done)
        if len(again) and directory.path != self._later:
            what = f"{len(again)} steps from {again[0]} to {again[-1]} come again in a later directory, which is taken"
            self.troubles.append(_Trouble(directory.path, f"{self._folder.name}: {what}", skipped=False))
        self._done = np.union1d(self._done, np.concatenate(steps))
        self._later = directory.path

    def _file(self, file: TableFile, directory: RankDirectory, curves: CurveFile) -> Steps:
        """The steps that ``file`` holds."""
        steps = [np.array([], dtype=np.int64)]
        for rows, time in self._read(file, directory.rank):
            steps.append(np.unique(rows.steps))
            self._write(rows, time, curves)
        self.files += 1
        return np.unique(np.concatenate(steps))

    def _read(self, file: TableFile, rank: int) -> Iterator[tuple[Rows, float]]:
        """What can be read of ``file``, and when it was written."""
        try:
            stat = file.path.stat()
            for piece in pieces(file, rank, stat.st_size):
                parsed = parse(piece)
                self.troubles += (_Trouble(file.path, what, line) for line, what in parsed.troubles)
                if parsed.rows is not None:
                    yield parsed.rows, stat.st_mtime
        except (ImportError, OSError, ValueError) as error:
            self.troubles.append(_Trouble(file.path, f"{error}: left out"))

    def _write(self, rows: Rows, time: float, curves: CurveFile) -> None:
        for begin, end in _same_step(rows.steps):
            step = int(rows.steps[begin])
            if not _holds(self._done, step):
                curves.add(step, time, rows.taken(slice(begin, end)))
                self.rows += end - begin


def _same_step(steps: Steps) -> Iterator[tuple[int, int]]:
    """Where each stretch of the same step begins and ends."""
    edges = [0, *(np.flatnonzero(np.diff(steps)) + 1).tolist(), len(steps)]
    yield from pairwise(edges)


def _holds(steps: Steps, step: int) -> bool:
    place = int(np.searchsorted(steps, step))
    return place < len(steps) and bool(steps[place] == step)
