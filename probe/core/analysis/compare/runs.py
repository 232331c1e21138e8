"""Two runs, each found in its directory, opened in one database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from probe.core.naming import CLOCKS, PHASE, RUN
from probe.core.storage.directories import RankDirectory, RecordedRun, last_run
from probe.core.storage.duckdb_reader import Rows, connect
from probe.core.storage.manifest import FILE, Manifest
from probe.core.storage.problems import Problems
from probe.core.storage.run_directory import directories_of
from probe.core.storage.sql import literal
from probe.core.storage.table_files import first_step, has_tables

CLOCK_ROWS = {RUN: f"name IN ({', '.join(map(literal, CLOCKS))}) OR starts_with(name, {literal(PHASE)})"}
"""Rows that differ between any two runs."""


class Side(NamedTuple):
    """One of the two runs."""

    letter: str
    root: Path
    run: RecordedRun
    rows: Rows
    problems: Problems

    @property
    def framework(self) -> str:
        return self.run.directories[0].manifest.framework

    @property
    def decimals(self) -> float:
        """The unit of the last decimal place that was written, where their number is fixed; else 0."""
        given = self.run.directories[0].manifest.config.get("ndigits")
        return 10.0**-given if isinstance(given, int) else 0.0


@contextmanager
def opened(a: Path, b: Path) -> Iterator[tuple[Side, Side]]:
    """Open the last run in each of two directories, in one database.

    Raises:
        ValueError: if one of them cannot be read.
        ImportError: if DuckDB is missing.
    """
    with ExitStack() as stack:
        connection = connect()
        stack.callback(connection.close)
        sides = []
        for letter, root in (("a", a), ("b", b)):
            problems = Problems()
            run = _run(root.expanduser(), problems)
            rows = stack.enter_context(Rows(run.directories, problems, connection, letter, CLOCK_ROWS))
            if not rows.files:
                raise ValueError(
                    "\n".join([f"{root}: expected files of the monitor; none can be read", *problems.lines()])
                )
            sides.append(Side(letter, root, run, rows, problems))
        yield sides[0], sides[1]


def _run(root: Path, problems: Problems) -> RecordedRun:
    """The last run in ``root``, or what ``probe merge`` has written there, as of rank 0."""
    merged = root.is_dir() and has_tables(root) and not (root / FILE).exists()
    if merged and not any(root.glob(directories_of())):
        return RecordedRun((RankDirectory(root, 0, "", 0.0, Manifest(), first_step(root)),), ())
    return last_run(root, problems)
