"""Findings of a run as a tracker gets them: a table, alerts, and the first cause."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Protocol

from probe.core.naming import row_name
from probe.core.records import Finding
from probe.core.rules.evaluate import explain
from probe.core.trackers import Cell, Notice, TrackedTable
from probe.core.trackers.tracked_series import TrackedSeries

COLUMNS = ("step", "rank", "rule", "signal", "layer", "op", "value", "expected", "message")
TABLE = "probe/findings"
MOST_ROWS = 1000
"""Most findings of a run in the table."""
MOST_NOTICES = 50
"""Most alerts of a run."""
QUIET_STEPS = 12
"""Sampled steps without a finding after which an incident has ended, as in `probe anomalies`."""
MOST_LINES = 5
"""Findings that an alert lists."""


class NumberFinding(Protocol):
    """Finding about a number of the run."""

    @property
    def rule(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def step(self) -> int: ...
    @property
    def value(self) -> float: ...
    @property
    def expected(self) -> float: ...
    @property
    def message(self) -> str: ...
    @property
    def resolved(self) -> bool: ...


class TrackedFindings:
    """Findings of a run so far. Two threads write it.

    Args:
        rank: rank of the findings about numbers of the run.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._rows: list[tuple[Cell, ...]] = []
        self._notices = 0
        self._in_incident, self._quiet = False, 0
        self._first: Finding | None = None
        self._first_of_run = ""
        self._lock = threading.Lock()
        self.number = 0
        """Number of all findings."""

    def found(self, step: int, findings: Sequence[Finding]) -> Notice | None:
        """Take the findings of a sampled step, in causal order; return the alert that an incident has begun."""
        with self._lock:
            if not findings:
                self._quiet += 1
                self._in_incident = self._in_incident and self._quiet < QUIET_STEPS
                return None
            self._add([row_of(finding) for finding in findings])
            begins, self._in_incident, self._quiet = not self._in_incident, True, 0
            if self._first is None or (math.isfinite(self._first.value) and not math.isfinite(findings[0].value)):
                self._first = findings[0]
            return self._counted(self._notice(step, findings)) if begins else None

    def run_found(self, finding: NumberFinding, rank: int | None = None) -> Notice | None:
        """Take a finding about a number of the run; return its alert.

        Args:
            rank: the rank that has it, if it is another one.
        """
        if finding.resolved:
            return None
        with self._lock:
            finding_rank = self._rank if rank is None else rank
            cells = finding_rank, finding.rule, "run", finding.name, "value", finding.value, finding.expected
            self._add([(finding.step, *cells, finding.message)])
            self._first_of_run = self._first_of_run or finding.message
            title = f"{finding.name} at step {finding.step}: {finding.rule}"
            return self._counted(Notice(title, finding.message, not math.isfinite(finding.value), finding.step))

    @property
    def first_cause(self) -> str:
        """Place and sentence of the first finding about tensors, or of the first NaN or Inf; without one, the first
        finding about numbers of the run. Empty if there is none."""
        with self._lock:
            first, of_run = self._first, self._first_of_run
        return f"{place_of(first)}. {explain(first)}" if first is not None else of_run

    @property
    def table(self) -> TrackedTable:
        """All findings that are kept."""
        with self._lock:
            return TrackedTable(TABLE, COLUMNS, tuple(self._rows))

    def _add(self, rows: Sequence[tuple[Cell, ...]]) -> None:
        self.number += len(rows)
        self._rows += rows[: MOST_ROWS - len(self._rows)]

    def _notice(self, step: int, findings: Sequence[Finding]) -> Notice:
        first = findings[0]
        lines = [explain(first), *(finding.message for finding in findings[:MOST_LINES])]
        if (more := len(findings) - MOST_LINES) > 0:
            lines.append(f"and {more} more in this step")
        return Notice(place_of(first), "\n".join(lines), not math.isfinite(first.value), step)

    def _counted(self, notice: Notice) -> Notice | None:
        self._notices += 1
        return notice if self._notices <= MOST_NOTICES else None


def place_of(first: Finding) -> str:
    """Return the place of a first finding, in words."""
    return f"first bad: {row_name(first.key)} ({first.signal}) on rank {first.rank} at step {first.step}"


def row_of(finding: Finding) -> tuple[Cell, ...]:
    """Return the row of the table about ``finding``."""
    key = finding.key
    cells = finding.step, finding.rank, finding.rule, finding.signal, row_name(key), finding.op
    return (*cells, finding.value, finding.expected, finding.message)


def summary_of(series: TrackedSeries, findings: TrackedFindings) -> dict[str, Cell]:
    """Return the facts that stand in the summary of a run: the first cause, findings, the worst layer of each signal,
    and the number of series for which there was no room."""
    cause: dict[str, Cell] = {"probe/first_cause": findings.first_cause} if findings.first_cause else {}
    worst = {f"probe/{signal}/worst": layer for signal, layer in dict(series.worst).items()}
    return {**cause, "probe/findings_number": findings.number, **worst, "probe/left_out": series.left_out}
