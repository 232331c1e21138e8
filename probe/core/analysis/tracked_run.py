"""The files of all ranks of a run, as a tracker of experiments gets them."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from math import inf
from pathlib import Path

from probe.core.analysis.diagnosis.analyse import Analysis
from probe.core.analysis.diagnosis.evaluate import configured, ops_of, rules_of
from probe.core.analysis.diagnosis.run_verdict import verdict_about
from probe.core.language import message
from probe.core.naming import RUN
from probe.core.records import Batch, Finding
from probe.core.rules import Rule
from probe.core.rules.causal_order import causal_order
from probe.core.rules.evaluate import find
from probe.core.storage.batches import StoredStep, steps
from probe.core.storage.directories import RecordedRun, last_run
from probe.core.storage.duckdb_reader import Rows
from probe.core.storage.location import Place
from probe.core.storage.problems import Problems
from probe.core.trackers import Cell, Notice, TrackedRow, Tracker
from probe.core.trackers.tracked_findings import TrackedFindings, summary_of, texts_of
from probe.core.trackers.tracked_series import SignalStep, TrackedSeries, tensors_of
from probe.core.trackers.tracker_thread import merged

ROWS_AT_ONCE = 100
"""Steps that a tracker gets in one call."""


class TrackedRun:
    """The run in ``root`` that began last, step by step; each step is read once, after all ranks have written it.

    Args:
        most: most series.
        asked: patterns of the names of layers.

    Raises:
        ValueError: if there is no output of a run.
    """

    def __init__(self, root: Place, most: int, asked: Sequence[str]) -> None:
        self._root, self.problems = root, Problems()
        self.run = last_run(root, self.problems)
        """The run, as it was read last."""
        self._directories = self.run.by_rank()
        self._first_rank = self.run.ranks[0]
        self._series = TrackedSeries(most, asked)
        self._findings = TrackedFindings(self._first_rank)
        self._rules: dict[int, list[Rule]] = {}
        self._tensors_until = self._numbers_until = -1

    @property
    def ended(self) -> bool:
        """True if all ranks have ended."""
        return self.run.ended

    @property
    def last_step(self) -> int:
        """The last step that was handed over; -1 if there is none."""
        return max(self._tensors_until, self._numbers_until)

    @property
    def job(self) -> str:
        """Name of the job; empty if the configuration has none."""
        of_run = self.run.directories[0].manifest.config.get("run")
        return str(of_run.get("job") or "") if isinstance(of_run, Mapping) else ""

    def send(self, tracker: Tracker, whole: bool) -> int:
        """Hand the steps to ``tracker`` that were not handed over yet; return their number.

        Args:
            whole: whether the run has ended; else the last step of each rank may be unfinished, and is left for later.
        """
        problems, number = Problems(), 0
        run = last_run(self._root, problems)
        if run.name == self.run.name:
            self.run, self._directories = run, run.by_rank()
        with Rows(self.run.directories, problems) as rows:
            for part in _parts(heapq.merge(self._numbers(rows, whole), self._tensors(rows, whole), key=_step)):
                tracked = [item for item in part if isinstance(item, TrackedRow)]
                for notice in (item for item in part if isinstance(item, Notice)):
                    tracker.alert(notice)
                tracker.log(merged(tracked))
                number += len({row.step for row in tracked})
        if whole:
            self.problems.extend(problems)
        return number

    def finish(self, tracker: Tracker, analysis: Analysis, report: Path | None) -> None:
        """Hand over the findings, the first cause by ``analysis``, and a ``report``."""
        for on_rank in analysis.of_run:
            if (notice := self._findings.run_found(on_rank.finding, on_rank.rank)) is not None:
                tracker.alert(notice)
        texts: dict[str, Cell] = summary_of(self._series, self._findings)
        texts |= texts_of(verdict_about(analysis))
        if self._findings.number:
            tracker.table(self._findings.table)
        tracker.summary(texts)
        if report is not None:
            tracker.artifact(report)

    def _numbers(self, rows: Rows, whole: bool) -> Iterator[TrackedRow]:
        end = _horizon(rows, self.run, [RUN], whole)
        for step in steps(rows, self._first_rank, self._numbers_until + 1, None, [RUN]):
            if step.step >= end:
                return
            self._numbers_until = step.step
            for batch in step.batches:
                yield self._series.row(step.step, self._began, (), {}, batch)

    def _tensors(self, rows: Rows, whole: bool) -> Iterator[TrackedRow | Notice]:
        signals = [signal for signal in rows.signals if signal != RUN]
        end = _horizon(rows, self.run, signals, whole)
        ranks = [steps(rows, rank, self._tensors_until + 1) for rank in self.run.ranks]
        for number, group in groupby(heapq.merge(*ranks, key=_step), key=_step):
            if number >= end:
                return
            self._tensors_until = number
            steps_of_number = list(group)
            ops = tuple(dict.fromkeys(op for step in steps_of_number for op in step.ops))
            yield self._series.row(number, self._began, ops, _by_signal(steps_of_number), None)
            rows_found = sorted((row for step in steps_of_number for row in self._found(rows, step)), key=causal_order)
            if (notice := self._findings.found(number, rows_found)) is not None:
                yield notice

    def _found(self, rows: Rows, step: StoredStep) -> list[Finding]:
        rules = self._rules.get(step.rank)
        if rules is None:
            directory = self._directories[step.rank][0]
            alert = configured(directory.manifest, directory.path, self.problems)
            rules = self._rules[step.rank] = rules_of(alert, step.rank, ops_of(rows))[0]

        def failed(rule: Rule, error: Exception) -> None:
            name = type(rule).__name__
            trouble = message("rule {name} failed ({reason})", name=name, reason=f"{type(error).__name__}: {error}")
            self.problems.add(self.run.directories[0].path, trouble)

        return find(rules, step.batches, failed)

    @property
    def _began(self) -> float:
        return min(directory.began for directory in self.run.directories)


def _step(item: StoredStep | TrackedRow | Notice) -> int:
    return item.step


def _horizon(rows: Rows, run: RecordedRun, signals: Iterable[str], whole: bool) -> float:
    """Return the first step that some rank may not have finished; infinite if the run is ``whole``."""
    if whole:
        return inf
    last: dict[int, int] = {}
    for signal in signals:
        if signal in rows.signals:
            query = f"SELECT rank, max(step) FROM {rows.view(signal)} GROUP BY rank"  # noqa: S608
            for rank, step in rows.connection.execute(query).fetchall():
                last[rank] = max(step, last.get(rank, -1))
    ranks = run.ranks[:1] if list(signals) == [RUN] else run.ranks
    return min((last.get(rank, -1) for rank in ranks), default=-1)


def _by_signal(steps: Sequence[StoredStep]) -> dict[str, SignalStep]:
    """Return the rows of all ranks by signal."""
    by_signal: dict[str, list[tuple[Batch, int]]] = {}
    for step in steps:
        for batch in tensors_of(step.batches):
            by_signal.setdefault(batch.signal, []).append((batch, step.rank))
    return {
        signal: SignalStep([batch for batch, _ in pairs], [rank for _, rank in pairs])
        for signal, pairs in by_signal.items()
    }


def _parts(items: Iterable[TrackedRow | Notice]) -> Iterator[list[TrackedRow | Notice]]:
    """Yield rows and notices, of about ``ROWS_AT_ONCE`` steps at a time."""
    part: list[TrackedRow | Notice] = []
    for item in items:
        if len(part) >= ROWS_AT_ONCE and item.step != part[-1].step:
            yield part
            part = []
        part.append(item)
    if part:
        yield part
