"""Updates of the sampled steps of a rank, which lie beside its rows."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import replace
from math import nan
from typing import Any

from probe.core.records import Outcome, Update
from probe.core.storage.batches import Readable, StoredStep
from probe.core.storage.directories import RankDirectory
from probe.core.storage.layout import COSTS, UPDATE_COLUMNS
from probe.core.storage.manifest import is_whole
from probe.core.storage.side_files import PACKED_COSTS, packed_records, parsed_lines, whole_lines

Dated = tuple[int, Update]
"""Step and its update."""
ABOUT = "the updates of steps"
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
