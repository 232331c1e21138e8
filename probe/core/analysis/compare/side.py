"""Sides of a comparison: two runs, each found in its directory."""

from __future__ import annotations

from typing import NamedTuple

from probe.core.naming import CLOCKS, PHASE, RUN
from probe.core.storage.directories import RankDirectory, RecordedRun, last_run
from probe.core.storage.location import Place
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
    root: Place
    run: RecordedRun
    problems: Problems

    @property
    def framework(self) -> str:
        return self.run.directories[0].manifest.framework

    @property
    def decimals(self) -> float:
        """The unit of the last decimal place that was written, where their number is fixed; else 0."""
        given = self.run.directories[0].manifest.config.get("ndigits")
        return 10.0**-given if isinstance(given, int) else 0.0


def found(letter: str, root: Place, directory: str = "") -> Side:
    """Find the last run in a directory.

    Args:
        directory: name of a directory of the run that is found instead.

    Raises:
        ValueError: if it cannot be read.
    """
    problems = Problems()
    return Side(letter, root, _run(root.expanduser(), problems, directory), problems)


def _run(root: Place, problems: Problems, directory: str) -> RecordedRun:
    """The last run in ``root``, or what ``probe merge`` has written there, as of rank 0."""
    merged = root.is_dir() and has_tables(root) and not (root / FILE).exists()
    if merged and not any(root.glob(directories_of())):
        return RecordedRun((RankDirectory(root, 0, "", 0.0, Manifest(), first_step(root)),), ())
    return last_run(root, problems, directory)
