"""Files beside the rows of a rank: lines of JSON, or the table that a packed run has of those of all ranks."""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from math import nan
from typing import Any, TypeVar

from probe.core.language import message
from probe.core.records import Outcome, Update
from probe.core.storage.batches import Readable, StoredStep
from probe.core.storage.directories import RankDirectory
from probe.core.storage.files import opened
from probe.core.storage.layout import COST_COLUMNS, COSTS, UPDATE_COLUMNS
from probe.core.storage.location import Place
from probe.core.storage.manifest import is_whole
from probe.core.storage.packed.run import packed_index
from probe.core.storage.problems import Problems
from probe.core.storage.sql import listed, literal, pattern_of

T = TypeVar("T")
LONGEST = 1 << 20
"""Bytes of a line at most."""
FETCHED = 1000
PACKED_COSTS = "costs.parquet"
"""Table of a packed run: the lines of all these files, with ``rank`` and ``directory`` as in packed files."""
Dated = tuple[int, Update]
"""Step and its update."""
ABOUT = message("the updates of steps")
OUTCOMES: tuple[Outcome, ...] = ("applied", "skipped", "unknown", "partial")


def whole_lines(path: Place, subject: str, problems: Problems) -> Iterator[bytes]:
    """Yield the lines of a file, none if there is no file. An unfinished last line may be in the making.

    Args:
        subject: their subject, for messages.
    """
    if not path.is_file():
        return
    try:
        with opened(path) as file:
            yield from (line for line in iter(lambda: file.readline(LONGEST), b"") if line.endswith(b"\n"))
    except OSError as error:
        problems.add(path, message("{error}; {subject} are unknown", error=error, subject=subject))


def parsed_lines(
    lines: Iterable[bytes], parse: Callable[[Any], T], path: Place, subject: str, problems: Problems
) -> Iterator[T]:
    """Yield what ``parse`` makes of the JSON of each line; lines at which it fails are counted in ``problems``."""
    bad = 0
    for line in lines:
        try:
            parsed = parse(json.loads(line))
        except (ValueError, RecursionError, KeyError, TypeError):
            bad += 1
        else:
            yield parsed
    if bad:
        problems.add(path, message("lines that cannot be read, about {subject}: {number}", subject=subject, number=bad))


def packed_records(
    rows: Readable, directory: RankDirectory, name: str, subject: str, more: str
) -> Iterator[dict[str, Any]]:
    """Yield the rows about a directory in a table of a packed run; none if the run has no such table.

    Args:
        rows: reader of the run's rows, with a ``connection``.
        name: file of the table.
        more: SQL after the condition of the directory.
    """
    index, connection = packed_index(directory.path.parent), getattr(rows, "connection", None)
    if connection is None or (table := index.table(name)) is None:
        return
    place = directory.rank, int(index.directories["position"][directory.packed or 0])
    source = f"read_parquet({literal(pattern_of(table))})"
    cursor = connection.cursor()
    try:
        try:
            cursor.execute(f"SELECT * FROM {source} WHERE rank = ? AND directory = ? {more}", place)  # noqa: S608
        except Exception as error:  # noqa: BLE001 - of DuckDB or of a storage; it is recorded
            rows.problems.add(
                table, message("{error}; {subject} are unknown", error=" ".join(str(error).split()), subject=subject)
            )
            return
        names = [column[0] for column in cursor.description]
        while some := cursor.fetchmany(FETCHED):
            yield from (dict(zip(names, cells, strict=True)) for cells in some)
    finally:
        cursor.close()


def costs_source(paths: Sequence[Place]) -> str:
    """Return SQL that reads such files with the columns of :data:`COST_COLUMNS`, those of :data:`UPDATE_COLUMNS` and
    ``filename``; lines that cannot be parsed are left out."""
    columns = ", ".join(f"{name}: '{kind}'" for name, kind in (COST_COLUMNS | UPDATE_COLUMNS).items())
    return (
        f"read_json({listed(list(paths))}, format = 'newline_delimited', columns = {{{columns}}}, "
        "ignore_errors = true, filename = true)"
    )


def packed_costs_source(root: Place, folders: Sequence[tuple[int, int, Place]]) -> str:
    """Return SQL that reads the costs of some directories of a packed run, with the directory's path as ``filename``.

    Args:
        folders: rank, position and path of each directory.
    """
    places = ", ".join(f"({rank}, {position}, {literal(str(path))})" for rank, position, path in folders)
    return (
        f"(SELECT c.* EXCLUDE (rank, directory), f.filename "  # noqa: S608 - numbers and literals
        f"FROM read_parquet({literal(pattern_of(root / PACKED_COSTS))}) AS c "
        f"JOIN (VALUES {places}) AS f(rank, directory, filename) USING (rank, directory))"
    )


class StepUpdates:
    """The updates of one rank, read along with its rows; runs of older versions have none.

    Args:
        rows: a reader of the rank's rows; of a packed run one that has a ``connection``.
    """

    def __init__(self, rows: Readable, rank: int) -> None:
        of_rank = [directory for directory in rows.directories if directory.rank == rank]
        self._updates = heapq.merge(*(_of(rows, directory) for directory in of_rank), key=lambda dated: dated[0])
        self._next: Dated | None = next(self._updates, None)

    def put_into(self, step: StoredStep) -> StoredStep:
        """Return ``step`` with its update in every batch. Call in the order of steps."""
        update = self._at(step.step)
        if update is None:
            return step
        return step._replace(batches=[replace(batch, update=update) for batch in step.batches])

    def _at(self, step: int) -> Update | None:
        update = None
        while self._next is not None and self._next[0] <= step:
            update = self._next[1] if self._next[0] == step else None
            self._next = next(self._updates, None)
        return update


def _of(rows: Readable, directory: RankDirectory) -> Iterator[Dated]:
    """Yield the updates of one directory, those of steps that were done again left out."""
    path = directory.path / COSTS
    if directory.packed is None:
        read = parsed_lines(whole_lines(path, ABOUT, rows.problems), dict[str, Any], path, ABOUT, rows.problems)
    else:
        read = packed_records(rows, directory, PACKED_COSTS, ABOUT, "ORDER BY step")
    for cells in read:
        step: Any = cells.get("step")
        if is_whole(step) and (directory.until is None or step < directory.until):
            yield step, _update(cells)


def _update(cells: dict[str, Any]) -> Update:
    """Parse an update; a cell that is missing or not as it is written is unknown."""
    written: list[Any] = [cells.get(name) for name in UPDATE_COLUMNS]
    outcome, skips, begun, rate = written
    valid: Outcome = outcome if outcome in OUTCOMES else "unknown"
    is_number = isinstance(rate, int | float) and not isinstance(rate, bool)
    return Update(valid, skips if is_whole(skips) else 0, begun is not False, float(rate) if is_number else nan)
