"""Levels: cells of 16 steps of every row of a signal, for one op, from which a picture of a whole run is made at once.

They lie in the user's cache, never in the run. A step is added once. Levels that are lost, damaged, or made of files
that have changed in another way than by growing are made again.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from probe.core.analysis.pictures.cells import KINDS, CellArrays, cell_query, fetched
from probe.core.analysis.pictures.survey import SurveyRow
from probe.core.storage.duckdb_reader import Rows, fill
from probe.core.storage.files import moved, opened
from probe.core.storage.layout import CSV, PP_STAGE
from probe.core.storage.location import Place
from probe.core.storage.sql import quoted
from probe.core.storage.table_files import TableFile
from probe.view.row_names import stages_of
from probe.view.run_files import FileStamp, RunListing
from probe.view.run_reader import RunReader

_log = logging.getLogger("probe.view")

STEPS = 16
"""Steps of a column of the finest level."""
MOST_CELLS = 2_000_000
"""Cells of a level at most; beyond that its columns become twice as wide."""
TAIL = 4096
"""Bytes at the end of what was read of a file that grows by which it is known again."""
MOST_LEVELS = 16
"""Levels of a run that are kept in memory."""
WRITE_SECONDS = 20.0
"""Shortest time between two times at which the level of a run that grows is written."""
DONE = 1 << 40
"""Step up to which the files of ranks are read that have ended."""
VERSION = 3
"""Version of the files of levels; another one's are made again."""


@dataclass
class Level:
    """Cells of the rows of a signal for one op.

    The steps that each rank has finished are in ``cells``; those of its last step, which it may still write, are not.
    """

    signal: str
    op: str
    width: int = STEPS
    """Steps of a column."""
    rows: list[SurveyRow] = field(default_factory=list)
    """Rows in the order in which they were met."""
    blocks: list[int] = field(default_factory=list)
    """Columns that have numbers: the step divided by ``width``, ascending."""
    cells: CellArrays = field(default_factory=lambda: CellArrays.of(0, 0))
    until: dict[str, int] = field(default_factory=dict)
    """For each directory the step up to which it was read, that step excluded."""
    stamps: dict[str, tuple[int, int, str]] = field(default_factory=dict)
    """For each file that was read its size, time of change, and, if it grows, the hash of the end that was read."""
    cuts: dict[str, int | None] = field(default_factory=dict)
    """For each directory the step from which a later one continues."""

    def merge(self, found: Mapping[str, Any], rows: Sequence[SurveyRow]) -> None:
        """Merge cells.

        Args:
            found: arrays of cells, with ``line``, an index of ``rows``, and ``block``.
            rows: all rows of the level, those that it has first.
        """
        blocks = np.union1d(np.asarray(self.blocks, dtype=np.int64), found["block"])
        shape = len(rows), len(blocks)
        if shape != self.cells.shape:
            wide = CellArrays.of(*shape)
            lines, columns = np.ix_(np.arange(len(self.rows)), np.searchsorted(blocks, self.blocks))
            wide.merge(lines, columns, self.cells)
            self.cells = wide
        self.rows, self.blocks = list(rows), blocks.tolist()
        self.cells.merge(found["line"], np.searchsorted(blocks, found["block"]), found)
        while self.cells["count"].size > MOST_CELLS:
            self._coarsen()

    def _coarsen(self) -> None:
        """Make columns twice as wide."""
        own = np.asarray(self.blocks, dtype=np.int64) // 2
        blocks = np.unique(own)
        cells = CellArrays.of(len(self.rows), len(blocks))
        for parity in (0, 1):
            part = np.flatnonzero(np.asarray(self.blocks) % 2 == parity)
            lines = np.arange(len(self.rows))
            at = np.ix_(lines, np.searchsorted(blocks, own[part]))
            cells.merge(at[0], at[1], self.cells.take(lines, part))
        self.cells, self.blocks, self.width = cells, blocks.tolist(), 2 * self.width

    def copy(self) -> Level:
        """Return a level that can be extended by itself."""
        cells = CellArrays({kind: array.copy() for kind, array in self.cells.items()})
        return Level(self.signal, self.op, self.width, list(self.rows), list(self.blocks), cells)


class LevelStore:
    """Levels of one run, in memory and in a folder of the cache.

    Args:
        folder: folder of the run in the cache; it is made when something is written.
    """

    def __init__(self, reader: RunReader, folder: Path) -> None:
        self._reader, self._folder = reader, folder
        self._levels: dict[tuple[str, str], Level] = {}
        self._whole: dict[tuple[str, str], tuple[RunListing, Level]] = {}
        self._written: dict[tuple[str, str], float] = {}

    def level(self, signal: str, op: str) -> Level:
        """Return the level of a signal and op with everything that the files have now.

        Raises:
            RunGone, ValueError: as :meth:`RunReader.rows`.
        """
        with self._reader.lock:
            listing, key = self._reader.listing(), (signal, op)
            known = self._whole.get(key)
            if known is not None and known[0] is listing:
                return known[1]
            level = self._levels.pop(key, None) or self._stored(signal, op)
            if level is None or listing.databases or not _continues(level, listing):
                level = Level(signal, op)
            whole = self._extended(level, listing)
            self._levels[key], self._whole[key] = level, (listing, whole)
            while len(self._levels) > MOST_LEVELS:
                self._forget(next(iter(self._levels)))
            return whole

    def close(self) -> None:
        """Write what is not written yet."""
        with self._reader.lock:
            for key in list(self._levels):
                self._forget(key)

    def _forget(self, key: tuple[str, str]) -> None:
        level = self._levels.pop(key)
        self._whole.pop(key, None)
        if key in self._written and level.stamps:
            self._write(level)

    def _extended(self, level: Level, listing: RunListing) -> Level:
        """Add the steps that ranks have finished to ``level``; return it with those of their last steps, too."""
        spans = self._spans(level, listing)
        names = [directory.path.name for directory in listing.run.directories]
        done = {n: (first, end) for n, (first, end, _) in spans.items() if first < end}
        rest = {n: (end, last + 1) for n, (_, end, last) in spans.items() if end <= last}
        if done:
            self._add(level, done)
            level.until |= {names[n]: end for n, (_, end) in done.items()}
            level.stamps = _stamps(listing.files.get(level.signal, ()), listing, level)
            level.cuts = {directory.path.name: directory.until for directory in listing.run.directories}
            if time.monotonic() >= self._written.get((level.signal, level.op), 0.0) and not listing.databases:
                self._write(level)
                self._written[level.signal, level.op] = time.monotonic() + WRITE_SECONDS
        if not rest:
            return level
        whole = level.copy()
        self._add(whole, rest)
        return whole

    def _spans(self, level: Level, listing: RunListing) -> dict[int, tuple[int, int, int]]:
        """Return for each directory with new rows the first step that was not read, the step before which all are
        finished, and the last step."""
        directories = listing.run.directories
        first = {n: level.until.get(directory.path.name, 0) for n, directory in enumerate(directories)}
        if listing.databases or directories[0].packed is not None:
            return {n: (step, DONE, DONE - 1) for n, step in first.items() if step < DONE}
        grown = [(n, file) for n, file in listing.files.get(level.signal, ()) if file.last >= first[n]]
        if listing.ended:
            return {n: (first[n], DONE, DONE - 1) for n, _ in grown if first[n] < DONE}
        last_files = dict(sorted(grown, key=lambda pair: (pair[0], pair[1].first)))
        spans = {}
        for n, last in self._last_steps(level.signal, list(last_files.items())).items():
            ended = directories[n].manifest.ended or directories[n].until is not None
            if last >= first[n]:
                spans[n] = first[n], last + 1 if ended else last, last
        return spans

    def _last_steps(self, signal: str, files: list[tuple[int, TableFile]]) -> dict[int, int]:
        """Return the last step of each directory, by its last file."""
        if not files:
            return {}
        with self._reader.rows([signal], files={signal: files}) as rows:
            if signal not in rows.signals:
                return {}
            query = f"SELECT directory, max(step) FROM {rows.view(signal)} GROUP BY 1"  # noqa: S608 - our own view
            return dict(rows.connection.execute(query).fetchall())

    def _add(self, level: Level, spans: Mapping[int, tuple[int, int]]) -> None:
        """Add steps of some directories to a level."""
        listing = self._reader.listing()
        first, last = min(span[0] for span in spans.values()), max(span[1] for span in spans.values()) - 1
        directories = listing.run.directories
        ranks = None if len(spans) == len(directories) else {directories[n].rank for n in spans}
        with self._reader.rows([level.signal], first, last, ranks) as rows:
            if level.signal not in rows.signals or level.op not in rows.numbers(level.signal):
                return
            found = row_cells(rows, level.signal, level.op, level.width, spans)
            every, cells = with_lines(rows, found, {row: n for n, row in enumerate(level.rows)})
        level.merge(cells, every)

    def _path(self, signal: str, op: str) -> Path:
        name = hashlib.sha256(json.dumps([signal, op]).encode()).hexdigest()[:32]
        return self._folder / f"{name}.level"

    def _stored(self, signal: str, op: str) -> Level | None:
        try:
            return read_level(self._path(signal, op), signal, op)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            _log.warning("levels in %s cannot be used and are made again: %s", self._path(signal, op), error)
            return None

    def _write(self, level: Level) -> None:
        try:
            write_level(self._path(level.signal, level.op), level)
        except OSError as error:
            _log.warning("levels cannot be kept in %s: %s", self._folder, error)


def row_cells(rows: Rows, signal: str, op: str, width: int, spans: Mapping[int, tuple[int, int]]) -> str:
    """Make a temporary table of the cells of all rows of a signal; return its name.

    Args:
        width: steps of a cell.
        spans: for each directory that is read its first step, and the one after its last.
    """
    stages = stages_of(rows.directories)
    source, first, after, stage = f"{rows.view(signal)} AS v", "", "", str(next(iter(stages.values())))
    if len(spans) == len(stages) and len(set(spans.values())) == len(set(stages.values())) == 1:
        first, after = map(str, next(iter(spans.values())))  # joining the spans takes a third of the time
    else:
        columns = {"directory": "INTEGER", PP_STAGE: "INTEGER", "first": "BIGINT", "after": "BIGINT"}
        fill(rows.connection, "spans", columns, ((n, stages[n], *span) for n, span in spans.items()))
        source += " JOIN spans AS s ON s.directory = v.directory"
        first, after, stage = "s.first", "s.after", f"s.{PP_STAGE}"
    keys = {
        PP_STAGE: stage,
        "stage": "coalesce(v.vpp_stage, 0)",
        "name": "coalesce(v.name, '')",
        "block": f"v.step // {width}" if width & (width - 1) else f"v.step >> {width.bit_length() - 1}",
    }
    query = cell_query(keys, {"": f"v.{quoted(op)}"}, source, f"v.step >= {first} AND v.step < {after}")
    rows.connection.execute(f"CREATE OR REPLACE TEMP TABLE row_cells AS {query}")
    return "row_cells"


def with_lines(rows: Rows, table: str, lines: Mapping[SurveyRow, int]) -> tuple[list[SurveyRow], dict[str, Any]]:
    """Return all rows, those in ``lines`` first, and the cells of a table of :func:`row_cells` with their lines."""
    query = f"SELECT DISTINCT {PP_STAGE}, stage, name FROM {table} ORDER BY ALL"  # noqa: S608 - our own table
    every = list(lines)
    there = [SurveyRow(*row) for row in rows.connection.execute(query).fetchall()]
    every += [row for row in there if row not in lines]
    columns = {PP_STAGE: "INTEGER", "stage": "INTEGER", "name": "VARCHAR", "line": "INTEGER"}
    fill(rows.connection, "lines", columns, ((*row, n) for n, row in enumerate(every)))
    chosen = ", ".join(("line", "block", *KINDS))
    joined = f"SELECT {chosen} FROM {table} JOIN lines USING ({PP_STAGE}, stage, name)"  # noqa: S608 - our own tables
    return every, fetched(rows.connection, joined)


def _continues(level: Level, listing: RunListing) -> bool:
    """Return whether the files that were read are there, as they were or with more at their ends."""
    cuts = {directory.path.name: directory.until for directory in listing.run.directories}
    if any(cuts.get(name, -1) != cut for name, cut in level.cuts.items()):
        return False
    seen = 0
    for n, file in listing.files.get(level.signal, ()):
        name = file_name(listing, n, file)
        known = level.stamps.get(name)
        if known is None:
            if file.first < level.until.get(listing.run.directories[n].path.name, 0) and file.ranks is None:
                return False  # steps came after later ones
            if file.ranks is not None and level.until:
                return False
            continue
        seen += 1
        stamp = _stamp(listing, file)
        if not _is_known(file, known, stamp):
            return False
        if stamp != known[:2] and level.until.get(listing.run.directories[n].path.name, 0) == DONE:
            return False  # a rank that had ended goes on
    return seen == len(level.stamps)


def _is_known(file: TableFile, known: tuple[int, int, str], stamp: FileStamp) -> bool:
    size, modified, end = known
    if (size, modified) == stamp:
        return True
    if file.format != CSV or not end or stamp.size <= size:
        return False
    return _end_hash(file.path, size) == end


def _stamps(
    files: Sequence[tuple[int, TableFile]] | Any, listing: RunListing, level: Level
) -> dict[str, tuple[int, int, str]]:
    """Return the stamps of the files of which something was read."""
    found = {}
    for n, file in files:
        if file.first < level.until.get(listing.run.directories[n].path.name, 0) or file.ranks is not None:
            stamp, name = _stamp(listing, file), file_name(listing, n, file)
            known = level.stamps.get(name)
            if known is not None and known[:2] == stamp:
                found[name] = known
            else:
                found[name] = (*stamp, _end_hash(file.path, stamp.size) if file.format == CSV else "")
    return found


def _stamp(listing: RunListing, file: TableFile) -> FileStamp:
    return listing.stamps.get(file.path, FileStamp(-1, -1))


def file_name(listing: RunListing, n: int, file: TableFile) -> str:
    """Return the name of a file within its run."""
    if file.ranks is not None:
        return "/".join(file.path.parts[-3:])
    return f"{listing.run.directories[n].path.name}/{file.path.name}"


def _end_hash(path: Place, size: int) -> str:
    """Return the hash of the last bytes of the first ``size`` bytes of a file; empty if they cannot be read."""
    try:
        with opened(path) as source:
            source.seek(max(0, size - TAIL))
            return hashlib.sha256(source.read(min(TAIL, size))).hexdigest()[:32]
    except OSError:
        return ""


def write_level(path: Path, level: Level) -> None:
    """Write a level, which appears when it is complete.

    Raises:
        OSError: if it cannot be written.
    """
    about = {
        "version": VERSION,
        "signal": level.signal,
        "op": level.op,
        "width": level.width,
        "rows": level.rows,
        "blocks": level.blocks,
        "until": level.until,
        "stamps": level.stamps,
        "cuts": level.cuts,
    }
    text = np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)
    packed = io.BytesIO()
    np.savez(packed, about=text, **level.cells)
    data = packed.getvalue()
    path.parent.mkdir(parents=True, exist_ok=True)
    with moved(path, durable=False) as temporary:
        temporary.write_bytes(hashlib.sha256(data).digest() + data)


def read_level(path: Path, signal: str, op: str) -> Level:
    """Read a level.

    Raises:
        OSError: if there is none.
        ValueError: if it is damaged, or of another version.
    """
    data = path.read_bytes()
    digest, data = data[:32], data[32:]
    if hashlib.sha256(data).digest() != digest:
        raise ValueError("the file is damaged")
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        about = json.loads(arrays["about"].tobytes())
        cells = CellArrays({name: arrays[name].astype(kind.type) for name, kind in KINDS.items()})
    if (about["version"], about["signal"], about["op"]) != (VERSION, signal, op):
        raise ValueError("it is of another version")
    return Level(
        signal,
        op,
        about["width"],
        [SurveyRow(*row) for row in about["rows"]],
        about["blocks"],
        cells,
        about["until"],
        {name: (stamp[0], stamp[1], stamp[2]) for name, stamp in about["stamps"].items()},
        about["cuts"],
    )
