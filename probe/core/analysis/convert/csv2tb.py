"""Conversion of the files of all ranks to curves for TensorBoard, one folder a rank and kind."""

from __future__ import annotations

import logging
import shutil
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from os import PathLike
from pathlib import Path
from typing import NamedTuple

from probe.core.analysis.convert.csv2db import MOST_PROCESSES
from probe.core.analysis.convert.curves import CurveOutcome, write_folder
from probe.core.analysis.convert.select import (
    Chosen,
    ConversionUnit,
    Observer,
    checked_kinds,
    checked_number,
    checked_place,
    choose,
    output_folder,
)
from probe.core.analysis.engines import PieceEngine, mapped
from probe.core.analysis.engines.workers import WorkersDiedError, in_order
from probe.core.analysis.pieces import Piece, by_ranks
from probe.core.language import Message, message
from probe.core.messages import counted
from probe.core.storage.directories import RecordedRun
from probe.core.storage.event_file import curves_folder, is_event_file
from probe.core.storage.location import Location
from probe.core.storage.problems import Problems
from probe.core.storage.run_directory import rank_folder

logger = logging.getLogger("probe.convert")

PIECES_EACH = 4
"""Pieces for each that an engine works on at a time, if there are as many ranks."""


@dataclass
class Converted:
    """The result of a conversion."""

    path: Path
    """The folder for TensorBoard."""
    problems: Problems = field(default_factory=Problems)
    rows: int = 0
    files: int = 0

    def add(self, folder: Path, outcome: CurveOutcome | Exception) -> None:
        """Count a folder of curves, or record its failure."""
        if isinstance(outcome, Exception):
            self.problems.add(folder, message("{error}: left out", error=f"{type(outcome).__name__}: {outcome}"))
            return
        self.rows += outcome.rows
        self.files += outcome.files
        self.problems.extend(outcome.problems)

    @property
    def summary(self) -> Message:
        """One line for people."""
        rows, files = counted(self.rows, "row"), counted(self.files, "file")
        return message("{rows} of {files} in {path}{there}", rows=rows, files=files, path=self.path, there="")


def csv2tensorboard_by_step(
    monitor_path: str | PathLike[str] | Location,
    time_start: str | None = None,
    time_end: str | None = None,
    process_num: int = 1,
    data_type_list: Sequence[str] | None = None,
    output_dirpath: str | PathLike[str] | None = None,
) -> Converted:
    """Convert the CSV and Parquet files of a run to TensorBoard's event files.

    A file that cannot be read is left out and logged at WARNING. The summary is logged at INFO.
    """
    done = convert(monitor_path, time_start, time_end, process_num, data_type_list, output_dirpath)
    for line in done.problems.lines():
        logger.warning("%s", line)
    logger.info("%s", done.summary)
    return done


def convert(
    monitor_path: str | PathLike[str] | Location,
    time_start: str | None = None,
    time_end: str | None = None,
    process_num: int = 1,
    data_type_list: Sequence[str] | None = None,
    output_dirpath: str | PathLike[str] | None = None,
    observe: Observer | None = None,
    engine: PieceEngine | None = None,
) -> Converted:
    """Write ``rank{rank}/{kind}/events...``; files and lines that cannot be read are reported, and the rest is
    converted.

    Args:
        monitor_path: the directory in which the ranks have written, or its URL; ``~`` is the home directory.
        time_start: earliest directory, such as ``Dec03_21-34-40``, itself included; None for no limit.
        time_end: latest directory, itself included; None for no limit.
        process_num: processes that convert.
        data_type_list: kinds, by the prefix of their files; None for all.
        output_dirpath: None for ``{curtime}_csv2tensorboard_by_step`` in ``monitor_path``.
        observe: called with the number of folders that are done.
        engine: converts some ranks at a time, on machines that share the folders; None for ``process_num`` processes
            of this one.

    Raises:
        ValueError: if a value is not of its kind, there is nothing to convert, or the output cannot be written or
            has curves of the same ranks and kinds already.
        KeyboardInterrupt: after the event files have been removed.
    """
    checked_number("process_num", process_num, 1, MOST_PROCESSES)
    problems = Problems()
    root = checked_place("monitor_path", monitor_path)
    choice = choose(root, time_start, time_end, checked_kinds(data_type_list), problems)
    done = Converted(output_folder(root, output_dirpath, "csv2tensorboard_by_step"), problems)
    ranks = {directory.rank for directory in choice.directories}
    total = len(ranks) * len(choice.kinds)
    try:
        done.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{done.path}: expected a folder that can be written to; {error.strerror}") from None
    folders = [curves_folder(done.path, rank, kind) for rank in ranks for kind in choice.kinds]
    for folder in folders:
        _check_empty(folder)
    if engine is not None:
        _convert_by_ranks(engine, choice, done, folders)
        return done
    works = (_Work(unit, curves_folder(done.path, unit.rank, unit.kind)) for unit in choice.units(problems))
    try:
        for number, (work, outcome) in enumerate(in_order(_convert, works, min(process_num, total)), 1):
            done.add(work.folder, outcome)
            if observe:
                observe(number, total, f"{rank_folder(work.unit.rank)}/{work.unit.kind}")
    except WorkersDiedError as died:
        problems.add(done.path, message("{error}: not all is converted", error=died))
    except BaseException:  # Ctrl-C: half of a run would look like all of it
        _remove(folders)
        raise
    return done


def _convert_by_ranks(engine: PieceEngine, choice: Chosen, done: Converted, folders: Sequence[Path]) -> None:
    """Convert pieces of whole ranks; in the order of ranks, whatever the pieces."""
    run = RecordedRun(tuple(choice.directories), ())
    pieces = by_ranks(run, signals=choice.kinds, least=1 if engine.width == 1 else PIECES_EACH * engine.width)
    work = partial(_convert_piece, kinds=tuple(choice.kinds), output=done.path)
    try:
        for problems, attempt, outcomes in mapped(engine, work, pieces, done.problems):
            done.problems.extend(problems)
            for rank, kind, outcome in outcomes:
                folder = curves_folder(done.path, rank, kind)
                curves = curves_folder(attempt, rank, kind)
                if curves.is_dir():
                    folder.parent.mkdir(parents=True, exist_ok=True)
                    curves.replace(folder)
                done.add(folder, outcome)
    except BaseException:  # Ctrl-C: half of a run would look like all of it
        _remove(folders)
        raise
    finally:
        for attempt in done.path.glob(ATTEMPT.format("*")):
            shutil.rmtree(attempt, ignore_errors=True)


ATTEMPT = ".piece-{}.tmp"
"""Folder of the curves of a piece until its result has come: an engine may convert a piece twice."""
_Outcomes = list[tuple[int, str, CurveOutcome | Exception]]


def _convert_piece(piece: Piece, kinds: Sequence[str], output: Path) -> tuple[Problems, Path, _Outcomes]:
    """Convert the ranks of a piece; return the problems of its files, the folder, and the outcome of each kind."""
    problems, outcomes = Problems(), _Outcomes()
    attempt = output / ATTEMPT.format(uuid.uuid4().hex)
    for unit in Chosen(list(piece.directories), dict.fromkeys(kinds, 0)).units(problems):
        try:
            outcome: CurveOutcome | Exception = write_folder(unit, curves_folder(attempt, unit.rank, unit.kind))
        except (MemoryError, ImportError):
            raise
        except Exception as error:  # noqa: BLE001 - one folder's failure is not the others'
            outcome = error
        outcomes.append((unit.rank, unit.kind, outcome))
    return problems, attempt, outcomes


class _Work(NamedTuple):
    unit: ConversionUnit
    folder: Path


def _check_empty(folder: Path) -> None:
    if folder.is_dir() and any(is_event_file(path.name) for path in folder.iterdir()):
        raise ValueError(
            f"{folder}: there are curves already, and every point would be there twice: choose another output"
        )


def _remove(folders: Sequence[Path]) -> None:
    """Remove the event files, all of which are new, and the folders that are then empty."""
    with suppress(OSError):
        for folder in filter(Path.is_dir, folders):
            for path in folder.iterdir():
                if is_event_file(path.name) or (path.name.startswith(".") and path.suffix == ".tmp"):
                    path.unlink()
    for folder in folders:
        for path in (folder, folder.parent, folder.parent.parent):
            with suppress(OSError):
                path.rmdir()


def _convert(work: _Work) -> CurveOutcome:
    return write_folder(work.unit, work.folder)
