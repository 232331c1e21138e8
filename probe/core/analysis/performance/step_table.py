"""Numbers of the run of all ranks as one table, a row a rank and step, made by one reading of the files.

The table lies in DuckDB, which uses files beyond its limit of memory. Queries that hold every value they compare (a
median does) take some ranks or steps at a time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from probe.core.analysis.performance.throughput import Flags, Numbers, Steps
from probe.core.naming import (
    BATCH_SIZE,
    BATCH_TOKENS,
    LEARNING_RATE,
    LOSS,
    OUTSIDE_SECONDS,
    PHASE,
    RUN,
    SKIPPED_UPDATE,
    STEP_SECONDS,
    THROUGHPUT,
    TOKENS_PER_SECOND,
)
from probe.core.storage.duckdb_reader import Connection, Rows
from probe.core.storage.sql import literal
from probe.core.storage.table_files import TableFile

TABLE = "performance_steps"
FIXED = (
    *(STEP_SECONDS, THROUGHPUT, TOKENS_PER_SECOND, BATCH_SIZE, BATCH_TOKENS, OUTSIDE_SECONDS),
    *(LOSS, LEARNING_RATE, SKIPPED_UPDATE),
)
"""Numbers that have a column of their name."""
SECONDS = "_seconds"
MOST_PHASES = 24
"""Phases that have a column, those that took longest."""
USE = re.compile(
    r"memory|utili[sz]ation|(?:^|[/_.\-])(?:mem|util|mfu)(?:[/_.\-]|$)",
    re.IGNORECASE,
)
"""Names of numbers about memory and utilisation."""
MOST_USES = 64
"""Numbers about memory and utilisation that have a column."""
AT_ONCE = 4_000_000
"""Rows of which a query holds values at a time."""
HOUR = 3600.0


class NoNumbersError(ValueError):
    """The files have no seconds of steps."""


@dataclass(frozen=True)
class RunSeries:
    """Numbers of each step over all ranks, ascending by step; NaN where there is none."""

    steps: Steps
    seconds: Numbers
    """Median of the seconds of the step."""
    samples: Numbers
    """Median of samples a second on a rank."""
    tokens: Numbers
    """Median of tokens a second on a rank."""
    losses: Numbers
    """Mean of the finite losses."""
    not_finite: Numbers
    """Losses that are NaN or infinite."""
    rates: Numbers
    """Median learning rate."""
    usual: Flags
    """False for steps with a phase that less than half of the steps have, such as an evaluation."""

    def since(self, hours: float | None) -> int:
        """Return the first step of the last ``hours`` of training, counted back from the end by the seconds of steps;
        the first of all if None."""
        if hours is None:
            return int(self.steps[0])
        seconds_to_end = np.cumsum(np.nan_to_num(self.seconds)[::-1])[::-1]
        within = np.flatnonzero(seconds_to_end <= hours * HOUR)
        return int(self.steps[within[0]] if len(within) else self.steps[-1])

    def from_step(self, first: int) -> RunSeries:
        """Return the part from step ``first`` on."""
        mask = self.steps >= first
        return RunSeries(*(getattr(self, name)[mask] for name in self.__dataclass_fields__))


class StepTable:
    """Table of the numbers of the run.

    Args:
        rows: files of the run, open as long as this is used.

    Raises:
        NoNumbersError: if there are no seconds of steps.
    """

    def __init__(self, rows: Rows) -> None:
        self.connection: Connection = rows.connection
        if RUN not in rows.signals:
            raise NoNumbersError("there are no numbers of the run in the files")
        self.phases: dict[str, str] = {}
        """Columns of the seconds in a phase, by the number's name."""
        self.uses: dict[str, str] = {}
        """Columns of the numbers about memory and utilisation, by name."""
        """Phases that have no column."""
        names = self._names(_ends(rows))
        if self._make(rows.view(RUN), names):
            self._make(rows.view(RUN), self._names(rows.view(RUN)))
        self.ranks: list[int] = [
            rank
            for (rank,) in self.connection.execute(f"SELECT DISTINCT rank FROM {TABLE} ORDER BY rank").fetchall()  # noqa: S608
        ]
        row = self.connection.execute(
            f"SELECT min(step), max(step), count(DISTINCT step), count(step_seconds) FROM {TABLE}"  # noqa: S608
        ).fetchone()
        first, last, number, durations = row or (0, 0, 0, 0)
        self.first, self.last, self.number = int(first or 0), int(last or 0), int(number)
        if not durations:
            self.close()
            raise NoNumbersError("the numbers of the run have no step_seconds")

    def _names(self, source: str) -> list[str]:
        """Return the names of numbers in ``source``, the phases that took longest first."""
        query = (
            "SELECT name, coalesce(sum(value) FILTER (isfinite(value)), 0) AS total "  # noqa: S608 - our own words
            f"FROM {source} GROUP BY name ORDER BY total DESC, name"
        )
        return [name or "" for name, _ in self.connection.execute(query).fetchall()]

    def _make(self, view: str, names: Sequence[str]) -> bool:
        """Make the table with columns for ``names``; return True if the files have numbers of other names."""
        phases, uses = (
            [name for name in names if is_phase(name)],
            [name for name in names if USE.search(name) is not None and not is_phase(name)],
        )
        self.phases = {name: f"phase_{n}" for n, name in enumerate(phases[:MOST_PHASES])}
        self.uses = {name: f"use_{n}" for n, name in enumerate(sorted(uses)[:MOST_USES])}
        columns = {**{name: name for name in FIXED}, **self.phases, **self.uses}
        cells = "".join(f", max(value) FILTER (name = {literal(name)}) AS {column}" for name, column in columns.items())
        texts = ", ".join(map(literal, dict.fromkeys([*FIXED, *names])))
        self.connection.execute(
            f"CREATE OR REPLACE TEMP TABLE {TABLE} AS SELECT rank, step::INTEGER AS step{cells}, "  # noqa: S608 - names are literals
            f"count(*) FILTER (name NOT IN ({texts})) AS others FROM {view} WHERE step IS NOT NULL GROUP BY rank, step"
        )
        row = self.connection.execute(f"SELECT sum(others) FROM {TABLE}").fetchone()  # noqa: S608
        return bool(row and row[0])

    def close(self) -> None:
        """Drop the table."""
        self.connection.execute(f"DROP TABLE IF EXISTS {TABLE}")

    def series(self) -> RunSeries:
        """Return the numbers of each step over all ranks."""
        width = max(1, AT_ONCE // max(1, len(self.ranks)))
        phases = "".join(f", max({column}) > 0 AS {column}" for column in self.phases.values())
        query = (
            f"SELECT step, {_median(STEP_SECONDS)}, {_median(THROUGHPUT)}, {_median(TOKENS_PER_SECOND)}, "  # noqa: S608
            "avg(loss) FILTER (isfinite(loss)) AS loss, count(*) FILTER (NOT isfinite(loss)) AS not_finite, "
            f"{_median(LEARNING_RATE)}{phases} FROM {TABLE} WHERE step BETWEEN ? AND ? GROUP BY step ORDER BY step"
        )
        parts = [
            self.connection.execute(query, [low, low + width - 1]).fetchnumpy()
            for low in range(self.first, self.last + 1, width)
        ]
        together: Any = np.ma.concatenate  # numpy annotates few functions of masked arrays
        cells = {name: together([part[name] for part in parts]) for name in parts[0]}
        numbers = {name: _filled(cells[name]) for name in cells if name != "step"}
        return RunSeries(
            np.asarray(cells["step"], dtype=np.int64),
            numbers[STEP_SECONDS],
            numbers[THROUGHPUT],
            numbers[TOKENS_PER_SECOND],
            numbers[LOSS],
            numbers["not_finite"],
            numbers[LEARNING_RATE],
            _usual([numbers[column] > 0 for column in self.phases.values()], len(cells["step"])),
        )

    def has(self, name: str) -> bool:
        """Return whether any rank has the number ``name``, one of ``FIXED``."""
        row = self.connection.execute(f"SELECT count({name}) FROM {TABLE}").fetchone()  # noqa: S608 - our own words
        return bool(row and row[0])

    def skipped(self, first: int) -> int:
        """Return the number of steps from ``first`` on whose update was skipped on any rank."""
        query = f"SELECT count(DISTINCT step) FILTER (skipped = 1) FROM {TABLE} WHERE step >= ?"  # noqa: S608
        row = self.connection.execute(query, [first]).fetchone()
        return row[0] if row else 0

    def of_ranks(self, selected: str, first: int) -> Iterator[tuple[Any, ...]]:
        """Yield each rank with the aggregates ``selected`` (SQL) of its steps from ``first`` on."""
        size = max(1, AT_ONCE // max(1, self.number))
        for at in range(0, len(self.ranks), size):
            some = self.ranks[at : at + size]
            yield from self.connection.execute(
                f"SELECT rank, {selected} FROM {TABLE} WHERE step >= ? AND rank BETWEEN ? AND ? "  # noqa: S608 - our own words
                "GROUP BY rank ORDER BY rank",
                [first, some[0], some[-1]],
            ).fetchall()


def is_phase(name: str) -> bool:
    """Return whether a number is the seconds spent in a phase."""
    return name.startswith(PHASE) and name.endswith(SECONDS)


def _ends(rows: Rows) -> str:
    """Return SQL of the rows of the first and the last directory: most runs have the same names on every rank."""
    files = rows.files[RUN]
    ends = dict.fromkeys((files[0][0], files[-1][0]))
    end_files = [file for directory in ends for file in rows.files_of(RUN, directory)]
    groups: dict[tuple[str, tuple[str, ...]], list[TableFile]] = {}
    for file in end_files:
        groups.setdefault((file.format, file.columns), []).append(file)
    parts = (f"SELECT name, value FROM {rows.source(group)}" for group in groups.values())  # noqa: S608 - paths
    return f"({' UNION ALL '.join(parts)})"


def phase_name(name: str) -> str:
    """Return the phase of such a number."""
    return name.removeprefix(PHASE).removesuffix(SECONDS)


def _median(column: str) -> str:
    return f"median({column}) FILTER (isfinite({column})) AS {column}"


def _filled(cells: npt.NDArray[Any]) -> Numbers:
    """Return a column of DuckDB with NaN for its missing values."""
    filled: Any = np.ma.filled
    return np.asarray(filled(cells.astype(np.float64), np.nan), dtype=np.float64)


def _usual(phases: Sequence[Flags], number: int) -> Flags:
    usual = np.ones(number, dtype=np.bool_)
    for phase_present in phases:
        if 2 * phase_present.sum() <= number:
            usual &= ~phase_present
    return usual
