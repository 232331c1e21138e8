"""Findings of a run as a tracker gets them: a table, alerts, and the first cause."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from probe.core.checks.check import Grade
from probe.core.language import plain
from probe.core.naming import row_name
from probe.core.records import Finding, Severity
from probe.core.rules.evaluate import judged
from probe.core.trackers import Cell, Notice, TrackedTable
from probe.core.trackers.tracked_series import TrackedSeries
from probe.core.verdict import JudgedFinding, Looked, Verdict, verdict_of

COLUMNS = ("step", "rank", "rule", "signal", "layer", "op", "value", "expected", "message")
TABLE = "probe/findings"
MOST_ROWS = 1000
"""Most findings of a run in the table."""
MOST_NOTICES = 50
"""Most alerts of a run."""
QUIET_STEPS = 12
"""Sampled steps without a finding after which an incident has ended, as in `probe anomalies`."""


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
    def severity(self) -> Severity: ...
    @property
    def resolved(self) -> bool: ...


class TrackedFindings:
    """Findings of a run so far. Two threads write it.

    Args:
        rank: rank of the findings about numbers of the run.
        verdict: function that returns the verdict about the run; missing or None: that about the first finding.
    """

    def __init__(self, rank: int, verdict: Callable[[], Verdict | None] = lambda: None) -> None:
        self._rank, self._of_run = rank, verdict
        self._rows: list[tuple[Cell, ...]] = []
        self._in_incident, self._quiet = False, 0
        self._first: list[JudgedFinding] = []
        """The first finding, the first NaN or Inf, and the first about numbers of the run."""
        self._titles: set[str] = set()
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
            self._note(judged(findings[0])._replace(ranks=(findings[0].rank,)))
        return self._notice(step) if begins else None

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
            self._add([(finding.step, *cells, plain(finding.message))])
            self._note(_of_number(finding, () if rank is None else (rank,)))
        return self._notice(finding.step)

    @property
    def verdict(self) -> Verdict:
        """The verdict about the run so far."""
        with self._lock:
            first = [*self._first]
        verdict = self._of_run()
        return verdict if verdict is not None and verdict.kind else verdict_of(first, Looked())

    @property
    def table(self) -> TrackedTable:
        """All findings that are kept."""
        with self._lock:
            return TrackedTable(TABLE, COLUMNS, tuple(self._rows))

    def _add(self, rows: Sequence[tuple[Cell, ...]]) -> None:
        self.number += len(rows)
        self._rows += rows[: MOST_ROWS - len(self._rows)]

    def _note(self, finding: JudgedFinding) -> None:
        if not self._first or (finding.is_non_finite and not any(first.is_non_finite for first in self._first)):
            self._first.append(finding)

    def _notice(self, step: int) -> Notice | None:
        """Return the verdict as an alert; None if that was sent before, or nothing but notes was found."""
        verdict = self.verdict
        if not verdict.kind:
            return None
        title, critical = plain(verdict.head()), verdict.grade == "critical"
        with self._lock:
            if title in self._titles or len(self._titles) >= MOST_NOTICES:
                return None
            self._titles.add(title)
        return Notice(title, "\n".join(verdict.lines()[1:]), critical, step)


def _of_number(finding: NumberFinding, ranks: tuple[int, ...]) -> JudgedFinding:
    grade: Grade = "note" if finding.severity == "info" else finding.severity
    step, numbers = finding.step, {finding.name: finding.value}
    return JudgedFinding(grade, finding.rule, (finding.name,), step, step, finding.message, numbers, ranks)


def row_of(finding: Finding) -> tuple[Cell, ...]:
    """Return the row of the table about ``finding``."""
    key = finding.key
    cells = finding.step, finding.rank, finding.rule, finding.signal, row_name(key), finding.op
    return (*cells, finding.value, finding.expected, plain(finding.message))


def summary_of(series: TrackedSeries, findings: TrackedFindings) -> dict[str, Cell]:
    """Return the facts that stand in the summary of a run: the verdict, findings, the worst layer of each signal,
    and the number of series for which there was no room."""
    cause = texts_of(findings.verdict) if findings.number else {}
    worst = {f"probe/{signal}/worst": layer for signal, layer in dict(series.worst).items()}
    return {**cause, "probe/findings_number": findings.number, **worst, "probe/left_out": series.left_out}


def texts_of(verdict: Verdict) -> dict[str, Cell]:
    """Return a verdict as facts of a summary; none if nothing but notes was found."""
    if not verdict.kind:
        return {}
    return {
        "probe/first_cause": f"{verdict.head()}: {verdict.text}",
        "probe/verdict/kind": plain(verdict.kind),
        "probe/verdict/where": ", ".join(verdict.where),
        "probe/verdict/step": -1 if verdict.since is None else verdict.since,
        "probe/verdict/ranks": ",".join(map(str, verdict.ranks)),
    }
