"""What a metrics database knows by numbers: signals, targets and forms; and the range of its steps and ranks."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

_COLUMNS = {
    "monitoring_targets": ("target_id", "target_name", "vpp_stage", "micro_step", "call"),
    "tensor_forms": ("form_id", "shape", "dtype", "coverage"),
    "monitoring_metrics": ("metric_id", "metric_name"),
}
_RANGE = {"min_step": "min", "max_step": "max", "max_rank": "max"}


class Names:
    """Remembers what it has looked up, so that a known name costs no query; of a transaction that is undone it must
    be forgotten with it."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._ids: dict[str, dict[Any, int]] = {table: {} for table in _COLUMNS}
        self._range: tuple[int, int, int] | None = None

    def ids(self, table: str, items: Sequence[Any]) -> npt.NDArray[np.int64]:
        """The number of each item; new ones are given the next."""
        known = self._ids[table]
        for item in items:
            if item not in known:
                known[item] = self._found(table, item) or self._added(table, item)
        return np.fromiter((known[item] for item in items), np.int64, len(items))

    def widen_range(self, first: int, last: int, rank: int) -> None:
        """Keeps the smallest and largest step and the largest rank, as who draws a chart asks for them first."""
        known = self._range
        if known and known[0] <= first and last <= known[1] and rank <= known[2]:
            return
        for (name, function), value in zip(_RANGE.items(), (first, last, rank), strict=True):
            self._connection.execute(
                "INSERT INTO global_stats VALUES (?, ?) ON CONFLICT (stat_name) "  # noqa: S608 - one of our functions
                f"DO UPDATE SET stat_value = {function}(stat_value, excluded.stat_value)",
                (name, value),
            )
        stats = dict(self._connection.execute("SELECT stat_name, stat_value FROM global_stats"))
        self._range = stats["min_step"], stats["max_step"], stats["max_rank"]

    def _found(self, table: str, item: Sequence[Any]) -> int | None:
        number, *columns = _COLUMNS[table]
        where = " AND ".join(f"{column} = ?" for column in columns)
        row = self._connection.execute(f"SELECT {number} FROM {table} WHERE {where}", item).fetchone()  # noqa: S608
        return None if row is None else int(row[0])

    def _added(self, table: str, item: Sequence[Any]) -> int:
        columns = _COLUMNS[table][1:]
        statement = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"  # noqa: S608
        number = self._connection.execute(statement, item).lastrowid
        assert number is not None, "an INSERT gives a row its number"
        return number
