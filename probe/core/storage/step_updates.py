"""Updates of the sampled steps of a rank, which lie beside its rows."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator
from dataclasses import replace
from math import nan
from typing import Any

from probe.core.records import Outcome, Update
from probe.core.storage.batches import Readable, StoredStep
from probe.core.storage.cost_file import PACKED_COSTS
from probe.core.storage.directories import RankDirectory
from probe.core.storage.files import LONGEST_LINE, opened
from probe.core.storage.layout import COSTS, UPDATE_COLUMNS
from probe.core.storage.manifest import is_whole
from probe.core.storage.packed.run import packed_index
from probe.core.storage.sql import literal, pattern_of

Dated = tuple[int, Update]
"""Step and its update."""
FETCHED = 1000
OUTCOMES: tuple[Outcome, ...] = ("applied", "skipped", "unknown", "partial")


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
    read = _lines(rows, directory) if directory.packed is None else _packed(rows, directory)
    for cells in read:
        step: Any = cells.get("step")
        if is_whole(step) and (directory.until is None or step < directory.until):
            yield step, _update(cells)


def _lines(rows: Readable, directory: RankDirectory) -> Iterator[dict[str, Any]]:
    path, bad = directory.path / COSTS, 0
    if not path.is_file():
        return
    try:
        file = opened(path)
    except OSError as error:
        rows.problems.add(path, f"{error}; the updates of steps are unknown")
        return
    with file:
        while line := file.readline(LONGEST_LINE):
            try:
                cells = json.loads(line)
            except (ValueError, RecursionError):
                cells = None
            if isinstance(cells, dict):
                yield cells
            else:
                bad += line.endswith(b"\n")  # the last line may be in the making
    if bad:
        rows.problems.add(path, f"lines that cannot be read, about the updates of steps: {bad}")


def _packed(rows: Readable, directory: RankDirectory) -> Iterator[dict[str, Any]]:
    index, connection = packed_index(directory.path.parent), getattr(rows, "connection", None)
    if connection is None or (table := index.table(PACKED_COSTS)) is None:
        return
    place = directory.rank, int(index.directories["position"][directory.packed or 0])
    query = f"SELECT * FROM read_parquet({literal(pattern_of(table))}) WHERE rank = ? AND directory = ? ORDER BY step"  # noqa: S608
    cursor = connection.cursor()
    try:
        try:
            cursor.execute(query, place)
        except Exception as error:  # noqa: BLE001 - of DuckDB or of a storage; it is recorded
            rows.problems.add(table, f"{' '.join(str(error).split())}; the updates of steps are unknown")
            return
        names = [column[0] for column in cursor.description]
        while some := cursor.fetchmany(FETCHED):
            yield from (dict(zip(names, cells, strict=True)) for cells in some)
    finally:
        cursor.close()


def _update(cells: dict[str, Any]) -> Update:
    """Parse an update; a cell that is missing or not as it is written is unknown."""
    written: list[Any] = [cells.get(name) for name in UPDATE_COLUMNS]
    outcome, skips, begun, rate = written
    valid: Outcome = outcome if outcome in OUTCOMES else "unknown"
    is_number = isinstance(rate, int | float) and not isinstance(rate, bool)
    return Update(valid, skips if is_whole(skips) else 0, begun is not False, float(rate) if is_number else nan)
