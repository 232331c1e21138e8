"""Summary of a run for a list of runs: from manifests, names of files, and the ends of some of them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

from probe.core.storage.csv_rows import rows
from probe.core.storage.files import opened
from probe.core.storage.layout import COSTS, CSV, STEP
from probe.core.storage.location import Place
from probe.core.storage.problems import Problems
from probe.core.storage.table_files import TableFile
from probe.view.findings import DumpedFindings
from probe.view.run_files import RunListing

ALIVE_SECONDS = 300.0
"""Time in seconds since the last change after which a run that has not ended counts as lost."""
LOOKED_AT = 16
"""Ranks whose last step and cost are read at most."""
TAIL = 4096
"""Bytes at the end of a file in which its last line is looked for."""


class RunSummary(NamedTuple):
    """Facts about a run."""

    alive: bool
    ended: bool
    """True if its manifests have an end."""
    first_step: int
    last_step: int
    ranks: int
    findings: int | None
    first_cause: str | None
    cost: float | None
    """Time of the monitor as a part of training's."""
    problems: list[str]
    changed: float
    """Seconds since the epoch."""


def summary_of(listing: RunListing, root: Place, found: DumpedFindings) -> RunSummary:
    """Return the summary of a run."""
    from probe.core.analysis.report.findings import sentence

    directories = listing.run.directories
    problems = Problems()
    marks, number = found.read(root, listing.run, problems)
    own = [directory.manifest.findings for directory in directories]
    total = sum(n for n in own if n is not None) if None not in own else None
    problems.extend(listing.problems)
    last, cost = _ends(listing)
    return RunSummary(
        alive=is_alive(listing),
        ended=listing.ended,
        first_step=min(directory.first_step for directory in directories),
        last_step=last,
        ranks=len(listing.run.ranks),
        findings=max(total, number) if total is not None else number,
        first_cause=sentence(marks[0]) if marks else None,
        cost=cost,
        problems=problems.lines(5),
        changed=listing.changed,
    )


def unread_summary(problem: str) -> RunSummary:
    """Return the summary of a run of which nothing could be read."""
    return RunSummary(False, False, 0, -1, 0, None, None, None, [problem], 0.0)


def is_alive(listing: RunListing) -> bool:
    """Return whether a run goes on: it has not ended, and its files have changed lately."""
    return not listing.ended and time.time() - listing.changed < ALIVE_SECONDS


def _ends(listing: RunListing) -> tuple[int, float | None]:
    """Return the last step and the cost of the monitor, as some of the ranks have them."""
    directories = listing.run.directories
    latest: dict[int, TableFile] = {}
    for files in listing.files.values():
        for n, file in files:
            if n not in latest or file.first > latest[n].first:
                latest[n] = file
    every = range(len(directories))
    steps, costs = [-1], []
    for n in [*every[:: max(1, -(-len(every) // LOOKED_AT))], len(every) - 1]:
        line = _last_line(directories[n].path / COSTS) if directories[n].packed is None else {}
        costs += [line["overhead"]] if isinstance(line.get("overhead"), float) else []
        if isinstance(line.get(STEP), int):
            steps.append(line[STEP])
        elif n in latest:
            steps.append(_last_step(latest[n]))
    if directories[0].packed is not None:
        steps += [file.last for file in latest.values()]
    return max(steps), max(costs, default=None)


def _last_step(file: TableFile) -> int:
    """Return the last step of a file: of text the one in its last line, else the last that may be in it."""
    if file.format != CSV:
        return file.last
    try:
        lines = _end(file.path).split(b"\n")
    except OSError:
        return file.first
    at = file.columns.index(STEP)
    for line in reversed(lines[1:-1]):
        row = next(rows([line.decode("utf-8", "replace")]), None)
        if row is not None and not row.wrong and len(row.cells) == len(file.columns) and row.cells[at].isdecimal():
            return int(row.cells[at])
    return file.first


def _last_line(path: Place) -> dict[str, Any]:
    """Return the object in the last whole line of a file of costs; empty if there is none."""
    try:
        lines = _end(path).split(b"\n")
    except OSError:
        return {}
    return next(_objects(reversed(lines[:-1])), {})


def _objects(lines: Iterable[bytes]) -> Any:
    for line in lines:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            yield value


def _end(path: Place) -> bytes:
    with opened(path) as source:
        size = source.seek(0, 2)
        source.seek(max(0, size - TAIL))
        return source.read()
