"""Findings about numbers of the run: each rank's numbers judged again by the rules, and ranks compared."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import NamedTuple

from probe.core.analysis.diagnosis.evaluate import configured
from probe.core.analysis.diagnosis.passes import Passes
from probe.core.language import message
from probe.core.naming import PHASE, RUN, SKIPPED_UPDATE, STEP_SECONDS
from probe.core.records import Outcome
from probe.core.rules.threshold import ThresholdArgs
from probe.core.run_state.rules import RUN_RULES, RunFinding, RunRule, RunStep
from probe.core.run_state.rules.straggler import stragglers
from probe.core.run_state.rules.threshold import RunThreshold, limits_of
from probe.core.storage.duckdb_reader import Rows
from probe.core.storage.problems import Problems

MOST = 20
"""Findings of a run at most: the first of each rule, number and rank."""
FETCHED = 10_000
WAITED = f"{PHASE}data_seconds"
"""Phase that is compared between ranks if no collectives were recorded."""
COMPARED = ("time outside of collectives", f"{PHASE}data")
"""Seconds that are compared between ranks."""


class RankRunFinding(NamedTuple):
    """Finding about a number of one rank."""

    rank: int
    finding: RunFinding

    @property
    def text(self) -> str:
        """Line for people."""
        return f"rank {self.rank}, step {self.finding.step}: {self.finding.message}"


class PieceNumbers(NamedTuple):
    """Findings and seconds of the ranks of a piece."""

    found: list[RankRunFinding]
    """The first ones."""
    seconds: dict[str, dict[int, float]]
    """Median by what is compared between ranks, and rank."""
    last: int | None
    """Last step."""


def run_findings(passes: Passes) -> list[RankRunFinding]:
    """Return the first findings of each rule about the numbers of each rank, in order of step, at most ``MOST``."""
    if RUN not in passes.rows.signals:
        return []
    pieces = list(passes.over_ranks(partial(_of_piece, limits=_limits(passes)), signals=(RUN, "other")))
    findings = [finding for piece in pieces for finding in piece.found]
    last = max((piece.last for piece in pieces if piece.last is not None), default=0)
    seconds: dict[str, dict[int, float]] = {name: {} for name in COMPARED}
    for piece in pieces:
        for name, medians in piece.seconds.items():
            seconds[name].update(medians)
    findings += _slow_ranks(seconds, last)
    return sorted(findings, key=_in_order)[:MOST]


def _in_order(on_rank: RankRunFinding) -> tuple[int, int]:
    return on_rank.finding.step, on_rank.rank


def _limits(passes: Passes) -> tuple[ThresholdArgs, ...]:
    """Return the limits that the configuration of the run has set."""
    for directory in passes.run.directories:
        alert = configured(directory.manifest, directory.path, Problems())  # those of the rules are listed elsewhere
        return limits_of(alert.rules)
    return ()


def _of_piece(rows: Rows, limits: Sequence[ThresholdArgs]) -> PieceNumbers:
    if RUN not in rows.signals:
        return PieceNumbers([], {}, None)
    ranks = [rank for (rank,) in rows.connection.execute(f"SELECT DISTINCT rank FROM {rows.view(RUN)}").fetchall()]  # noqa: S608
    findings = [RankRunFinding(rank, finding) for rank in sorted(ranks) for finding in _of_rank(rows, rank, limits)]
    seconds = {name: dict(rows.connection.execute(query).fetchall()) for name, query in _times(rows)}
    last = rows.connection.execute(f"SELECT max(step) FROM {rows.view(RUN)}").fetchone()  # noqa: S608
    return PieceNumbers(sorted(findings, key=_in_order)[:MOST], seconds, last[0] if last else None)


def _of_rank(rows: Rows, rank: int, limits: Sequence[ThresholdArgs]) -> Iterator[RunFinding]:
    rules: list[RunRule] = [rule(rule.Args()) for rule in RUN_RULES.values() if rule.by_default]
    rules += map(RunThreshold, limits)
    seen: set[tuple[str, str]] = set()
    for step in _steps(rows, rank):
        for rule in rules:
            for finding in rule.judge(step):
                if not finding.resolved and (finding.rule, finding.name) not in seen:
                    seen.add((finding.rule, finding.name))
                    yield finding


def _steps(rows: Rows, rank: int) -> Iterator[RunStep]:
    cursor = rows.connection.cursor()
    query = f"SELECT step, name, value FROM {rows.view(RUN)} WHERE rank = ? AND step IS NOT NULL ORDER BY step"  # noqa: S608
    cursor.execute(query, [rank])

    def fetched() -> Iterator[tuple[int, str, float | None]]:
        while some := cursor.fetchmany(FETCHED):
            yield from some

    try:
        for step, cells in groupby(fetched(), key=lambda row: row[0]):
            values = {name: math.nan if value is None else value for _, name, value in cells}
            outcome: Outcome = "skipped" if values.get(SKIPPED_UPDATE) == 1.0 else "applied"
            yield RunStep(step, math.nan, values.get(STEP_SECONDS, math.nan), outcome, values)
    finally:
        cursor.close()


def _slow_ranks(seconds: Mapping[str, Mapping[int, float]], step: int) -> Iterator[RankRunFinding]:
    """Yield ranks that take longer than the others outside of collectives, or in loading data."""
    for name, medians in seconds.items():
        for slow in stragglers(dict(sorted(medians.items()))):
            text = f"{name} takes {slow.seconds:.3g} s a step, on the other ranks {slow.expected:.3g} s (medians)"
            yield RankRunFinding(
                slow.rank, RunFinding("RunStraggler", name, step, slow.seconds, slow.expected, text, "warning")
            )


def _times(rows: Rows) -> Iterator[tuple[str, str]]:
    """Yield what is compared between ranks, and the query of each rank's median seconds."""
    run = rows.view(RUN)
    if "other" in rows.signals and "seconds" in rows.numbers("other"):
        waited = (
            f"SELECT rank, step, sum(seconds) AS waited FROM {rows.view('other')} "  # noqa: S608 - our own views
            "WHERE name LIKE '%.post%' GROUP BY rank, step"
        )
        outside = (
            f"SELECT r.rank, median(r.value - w.waited) FROM {run} AS r JOIN ({waited}) AS w USING (rank, step) "  # noqa: S608
            f"WHERE r.name = '{STEP_SECONDS}' GROUP BY r.rank"
        )
        yield COMPARED[0], outside
    yield COMPARED[1], f"SELECT rank, median(value) FROM {run} WHERE name = '{WAITED}' GROUP BY rank"  # noqa: S608


def run_lines(findings: Sequence[RankRunFinding]) -> list[str]:
    """Return lines for people; none if nothing was found."""
    return [] if not findings else [message("Numbers of the run:"), *(f"  {on_rank.text}" for on_rank in findings)]
