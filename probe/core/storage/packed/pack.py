"""Packing of a run: the files of all ranks, in a folder of their own, as :mod:`run` describes.

The source is only read. Each file is written under another name and moved; a record of it lets an interrupted pack go
on. The index is written last: a folder without it is no packed run.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from probe.core.language import Message, invalid, message
from probe.core.messages import counted
from probe.core.storage.anomaly_json import FOLDER
from probe.core.storage.check_lines import CHECKS
from probe.core.storage.directories import RankDirectory, last_run, place
from probe.core.storage.duckdb_reader import MEMORY, Rows, connect
from probe.core.storage.files import MOST_JSON, moved, opened, replace_text
from probe.core.storage.layout import COST_COLUMNS, COSTS, PARQUET, UPDATE_COLUMNS, table_name
from probe.core.storage.location import on_disk
from probe.core.storage.manifest import FILE as MANIFEST
from probe.core.storage.metrics_schema import FILE_NAMES
from probe.core.storage.packed.blocks import SEALS, BlockWork, Sealed, write_block
from probe.core.storage.packed.plan import PackPlan, PackSettings
from probe.core.storage.packed.run import FILES_TABLE, INDEX, TEXTS_TABLE, is_packed, packed_index
from probe.core.storage.performance_file import PATTERN
from probe.core.storage.problems import Problem, Problems
from probe.core.storage.side_files import PACKED_COSTS, costs_source
from probe.core.storage.sql import literal

BLOCK_BYTES = 256 << 20
"""Bytes of the files that are packed into one; CSV shrinks to a third or less."""
FOLLOWED_BAND = 64
"""Ranks that are packed together while a run is followed, whose sizes are not known yet."""
PLAN = "plan.json"
"""Record whether the run was followed: the same ranks are packed together then when a pack goes on."""

InOrder = Callable[[Callable[[BlockWork], Sealed], Iterable[BlockWork]], Iterator[tuple[BlockWork, Any]]]
"""Function that calls another one with each item and yields the items with results, or exceptions, in order."""
Observer = Callable[[int, int, str], None]
"""Function called with the last rank that is done, the last of all, and the file that was written."""
_TABLES = {
    FILES_TABLE: (
        "rank INTEGER, directory INTEGER, signal VARCHAR, file INTEGER, size BIGINT, modified_ns BIGINT, rows BIGINT",
        "rank, directory, signal, file",
    ),
    PACKED_COSTS: (
        "rank INTEGER, directory INTEGER, "
        + ", ".join(f"{name} {kind}" for name, kind in (COST_COLUMNS | UPDATE_COLUMNS).items()),
        "rank, directory, rowid",
    ),
    TEXTS_TABLE: ("rank INTEGER, directory INTEGER, name VARCHAR, content BLOB", "rank, directory, name"),
}
"""Columns and order of each table, by the name of its file."""


@dataclass
class PackedReport:
    """The result of packing."""

    out: Path
    problems: Problems = field(default_factory=Problems)
    ranks: int = 0
    files: int = 0
    """Files that were packed."""
    blocks: int = 0
    """Files that were written, or were there already."""
    rows: int = 0
    bytes: int = 0
    before: int = 0
    """Bytes of the files that were packed."""
    complete: bool = True
    """False if a run that is followed has not ended."""

    def as_json(self) -> dict[str, Any]:
        """Export the result; problems as sentences."""
        problems = {"problems": [str(problem) for problem in self.problems.kept], "skipped": self.problems.skipped}
        return {**vars(self), **problems}

    @property
    def summary(self) -> Message:
        """One line for people."""
        return message(
            "{rows} of {ranks}: {files} with {before:,.1f} MB are {blocks} with {after:,.1f} MB in {out}",
            rows=counted(self.rows, "row"),
            ranks=counted(self.ranks, "rank"),
            files=counted(self.files, "file"),
            before=self.before / 1e6,
            blocks=counted(self.blocks, "file"),
            after=self.bytes / 1e6,
            out=self.out,
        )


class PackError(Exception):
    """A file could not be written; packing again goes on."""


def in_this_process(
    work: Callable[[BlockWork], Sealed], items: Iterable[BlockWork]
) -> Iterator[tuple[BlockWork, Sealed]]:
    """Yield each item with the result of ``work``."""
    yield from ((item, work(item)) for item in items)


def pack(
    root: Path,
    out: Path,
    in_order: InOrder = in_this_process,
    observe: Observer | None = None,
    block_bytes: int = BLOCK_BYTES,
    memory: str = MEMORY,
) -> PackedReport:
    """Pack the run in ``root`` that began last into the folder ``out``.

    Args:
        in_order: calls a function for each of the files that are written.
        observe: called after each file.
        block_bytes: bytes of the files that are packed into one.
        memory: memory for each of the files that are written at a time.

    Raises:
        ValueError: if there is no run in ``root``, or ``out`` is no place for a packed run.
        PackError: if a file cannot be written.
        ImportError: if DuckDB is missing.
    """
    root, out = on_disk(place(root)), out.expanduser()
    _check(root, out)
    return _packed(root, out, PackSettings(block_bytes, memory), in_order, observe or _ignore)


def pack_followed(
    root: Path,
    out: Path,
    wait: Callable[[PackedReport], bool],
    in_order: InOrder = in_this_process,
    observe: Observer | None = None,
    block_bytes: int = BLOCK_BYTES,
    memory: str = MEMORY,
) -> PackedReport:
    """Pack a run while it trains: the files that no rank writes any more, again and again, and the rest at its end.

    After each time ``out`` is a packed run of the steps so far. If following ends before training does, :func:`pack`
    goes on.

    Args:
        wait: called after each time with the result so far; returns False to end.

    Raises:
        ValueError: as :func:`pack`.
        PackError: as :func:`pack`.
        ImportError: if DuckDB is missing.
    """
    root, out = on_disk(place(root)), out.expanduser()
    _check(root, out)
    some = PackSettings(block_bytes, memory, closed_only=True)
    while True:
        report = _packed(root, out, some, in_order, observe or _ignore)
        if report.complete:
            return _packed(root, out, some._replace(closed_only=False), in_order, observe or _ignore)
        if not wait(report):
            return report


def _check(root: Path, out: Path) -> None:
    """Raise ValueError if ``root`` cannot be packed into ``out``."""
    if root.is_dir() and is_packed(root):
        raise invalid(
            "{root}: expected the directory in which ranks have written; this is a packed run already", root=root
        )
    source, target = root.resolve(), out.resolve()
    if target == source or source in target.parents or target in source.parents:
        raise invalid(
            "{out}: expected a folder that is neither in {root} nor around it: a source is never changed",
            out=out,
            root=root,
        )
    if out.exists() and not out.is_dir():
        raise invalid("{out}: expected a new folder, or one to go on with; this is a file: name another", out=out)
    if not out.is_dir() or (out / SEALS).is_dir():
        return
    if is_packed(out):
        raise invalid("{out}: expected a new folder; there is a packed run already: remove it to pack again", out=out)
    if any(out.iterdir()):
        raise invalid("{out}: expected a new or an empty folder; there are other files in it: name another", out=out)


def _packed(root: Path, out: Path, settings: PackSettings, in_order: InOrder, observe: Observer) -> PackedReport:
    """Write all files, then the index."""
    settings = settings._replace(band=FOLLOWED_BAND if settings.closed_only or _was_followed(out) else None)
    written = set()
    with PackPlan(root, out, settings) as plan, SideTables() as side:
        report = PackedReport(out, ranks=len(plan.run.ranks))
        (out / SEALS).mkdir(parents=True, exist_ok=True)
        replace_text(out / SEALS / PLAN, json.dumps({"followed": settings.band is not None}))
        for work, sealed in in_order(write_block, _works(plan, side)):
            if isinstance(sealed, Exception):
                trouble = " ".join(str(sealed).split())[:400]
                raise PackError(f"{out / work.path}: {trouble}: pack again to go on") from sealed
            plan.draft.add(work, sealed)
            side.add_files(work, sealed)
            written |= {work.path} if sealed.steps else set()
            _count(report, work, sealed)
            observe(work.ranks[1], plan.run.ranks[-1], work.path)
        sizes = side.write(out)
        _copy_files(plan.base, out)
        report.complete = all(directory.manifest.ended for directory in plan.run.directories)
        complete = not settings.closed_only
        plan.draft.write(out, plan.found.kept, plan.chosen.kept, complete, sizes)
    if complete:
        _remove_others(out, written)
    with Rows(last_run(out, report.problems).directories, report.problems):
        pass
    report.problems.kept = [_at_source(problem, out, plan.base) for problem in report.problems.kept]
    return report


def _at_source(problem: Problem, out: Path, base: Path) -> Problem:
    """Return a problem that a packed run has, with the place of the source's file: only that can be looked at."""
    target, source = str(out), str(base)
    text = problem.what.replace(target, source) if target in problem.what else problem.what
    return problem._replace(path=Path(str(problem.path).replace(target, source, 1)), what=text)


def _works(plan: PackPlan, side: SideTables) -> Iterator[BlockWork]:
    """Yield the files that are to be written; directories are looked at when it is their turn."""
    for numbers in plan.bands():
        side.add_directories([(plan.run.directories[n], plan.positions[n]) for n in numbers])
        yield from plan.works(numbers)


def _was_followed(out: Path) -> bool:
    """Return whether the files in ``out`` are of a run that was followed."""
    try:
        return bool(json.loads((out / SEALS / PLAN).read_bytes())["followed"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _count(report: PackedReport, work: BlockWork, sealed: Sealed) -> None:
    report.rows += sealed.rows
    report.bytes += sealed.bytes
    report.blocks += sealed.steps is not None
    report.files += len(sealed.packed)
    report.before += sum(work.sources[part.source].size for part in sealed.packed)


def _copy_files(base: Path, out: Path) -> None:
    """Copy the files of the run that are no rank's: findings, and readings of machines."""
    for path in sorted([*(base / FOLDER).glob("*/*.json"), *base.glob(PATTERN), *base.glob(CHECKS)]):
        if path.is_file():
            target = out / path.relative_to(base)
            target.parent.mkdir(parents=True, exist_ok=True)
            with moved(target) as temporary:
                shutil.copy2(path, temporary)


def _remove_others(out: Path, written: set[str]) -> None:
    """Remove the records, and files that an earlier try has left."""
    for path in out.glob(f"*/ranks=*/*steps=*.{PARQUET}*"):
        if path.relative_to(out).as_posix() not in written:
            path.unlink()
    shutil.rmtree(out / SEALS)


def damaged(out: Path) -> list[Path]:
    """Return the files of a packed run that are not as they were written.

    Raises:
        ValueError: if there is no packed run, or its index cannot be read.
    """
    if not is_packed(place(out)):
        raise invalid("{out}: expected a packed run, with {index} in it; there is none", out=out, index=INDEX)
    return [on_disk(path) for path in packed_index(place(out)).damaged()]


def _ignore(done: int, total: int, name: str) -> None:
    """Do nothing: the observer if none was passed."""


class SideTables:
    """Tables that grow while a run is packed, beyond the limit of memory in files of DuckDB.

    Use as a context manager.
    """

    def __init__(self) -> None:
        self._connection = connect(threads=1)
        for name, (columns, _) in _TABLES.items():
            self._connection.execute(f"CREATE TABLE {_table(name)} ({columns})")

    def __enter__(self) -> SideTables:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def add_files(self, work: BlockWork, sealed: Sealed) -> None:
        """Add the files that were packed into one."""
        sources = [(work.sources[part.source], part.rows) for part in sealed.packed]
        cells: list[list[Any]] = [
            [source.rank for source, _ in sources],
            [source.position for source, _ in sources],
            [work.signal] * len(sources),
            [source.name for source, _ in sources],
            [source.size for source, _ in sources],
            [source.modified_ns for source, _ in sources],
            [rows for _, rows in sources],
        ]
        kinds = ("INTEGER", "INTEGER", "VARCHAR", "INTEGER", "BIGINT", "BIGINT", "BIGINT")
        values = ", ".join(f"unnest(?::{kind}[])" for kind in kinds)
        self._connection.execute(f"INSERT INTO {_table(FILES_TABLE)} SELECT {values}", cells)

    def add_directories(self, directories: Sequence[tuple[RankDirectory, int]]) -> None:
        """Add the costs and texts in directories, each with its position among those of its rank."""
        paths: dict[str, tuple[int, int]] = {}
        for directory, position in directories:
            for path in sorted(on_disk(directory.path).iterdir()):
                if _is_text(path):
                    self._add_text(path, directory.rank, position)
                if path.name == COSTS and path.is_file():
                    paths[str(path)] = (directory.rank, position)
        if not paths:
            return
        values = ", ".join(f"({literal(path)}, {rank}, {position})" for path, (rank, position) in paths.items())
        self._connection.execute(
            f"INSERT INTO {_table(PACKED_COSTS)} SELECT f.rank, f.directory, c.* EXCLUDE (filename) "  # noqa: S608
            f"FROM {costs_source(list(map(Path, paths)))} AS c "
            f"JOIN (VALUES {values}) AS f(path, rank, directory) ON f.path = c.filename"
        )

    def _add_text(self, path: Path, rank: int, position: int) -> None:
        with suppress(OSError), opened(path) as file:
            content = file.read(MOST_JSON + 1)
            if len(content) <= MOST_JSON:
                row = [rank, position, path.name, content]
                self._connection.execute(f"INSERT INTO {_table(TEXTS_TABLE)} VALUES (?, ?, ?, ?)", row)  # noqa: S608

    def write(self, out: Path) -> dict[str, int]:
        """Write the tables that have rows, and remove older ones that have none; return their sizes by name."""
        sizes: dict[str, int] = {}
        for name, (_, order) in _TABLES.items():
            number = self._connection.execute(f"SELECT count(*) FROM {_table(name)}").fetchall()[0][0]  # noqa: S608
            if not number:
                (out / name).unlink(missing_ok=True)
                continue
            query = f"SELECT * FROM {_table(name)} ORDER BY {order}"  # noqa: S608 - our own words
            with moved(out / name) as path:
                self._connection.execute(f"COPY ({query}) TO {literal(str(path))} (FORMAT parquet, COMPRESSION zstd)")
                sizes[name] = path.stat().st_size
        return sizes


def _table(name: str) -> str:
    return name.partition(".")[0]


def _is_text(path: Path) -> bool:
    """Return whether a file of a rank's directory is kept as it is."""
    is_other = path.name == MANIFEST or table_name(path.name) is not None or path.name in FILE_NAMES
    return not is_other and not path.name.startswith(".") and path.is_file()
