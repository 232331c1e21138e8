"""One run as the page shows it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from probe.core.analysis.pictures.rank_table import RankTable, rank_table
from probe.core.analysis.pictures.run_details import number_names, run_description, signal_description
from probe.core.analysis.pictures.survey import SurveyRow, first_files, micro_stepped
from probe.core.analysis.report.findings import Diagnosis, stages_of_ranks
from probe.core.naming import RUN, STEP_SECONDS, signal_of
from probe.core.storage.directories import RecordedRun
from probe.core.storage.location import located
from probe.core.storage.problems import Problems
from probe.view.background import BackgroundTasks, TaskResult, analysis_arguments
from probe.view.findings import DumpedFindings, of_analysis, of_dump
from probe.view.levels import LevelStore
from probe.view.row_names import RowNames, row_names, stages_of
from probe.view.run_files import GrowingFiles, RunListing
from probe.view.run_reader import RunReader
from probe.view.run_summary import RunSummary, summary_of


class ViewedRun:
    """A run that someone looks at: its rows, levels, names and findings.

    Args:
        files: files of the run.
        cache: folder of the cache.
    """

    def __init__(self, files: GrowingFiles, cache: Path, tasks: BackgroundTasks) -> None:
        self.place, self.directory, self._tasks = files.place, files.directory, tasks
        self.reader = RunReader(files)
        own = hashlib.sha256(f"{self.place}\0{self.directory}".encode("utf-8", "surrogateescape")).hexdigest()[:32]
        self.levels = LevelStore(self.reader, cache / own)
        self._dumped = DumpedFindings()
        self._about: tuple[RunListing, dict[str, Any]] | None = None
        self._ranks: tuple[RecordedRun, RankTable] | None = None

    def close(self) -> None:
        """Write levels that are not written yet, and release all resources."""
        self.levels.close()
        self.reader.close()

    def summary(self) -> RunSummary:
        """Return the summary of the run.

        Raises:
            RunGone: if the run has been removed.
        """
        with self.reader.lock:
            return summary_of(self.reader.listing(), located(self.place), self._dumped)

    def about(self) -> dict[str, Any]:
        """Return signals, numbers, ranks and facts of the run.

        Raises:
            RunGone: if the run has been removed.
        """
        with self.reader.lock:
            listing = self.reader.listing()
            if self._about is None or self._about[0] is not listing:
                self._about = listing, self._described(listing)
            return self._about[1]

    def names(self, signal: str) -> RowNames:
        """Return the rows of a signal, as its first step has them."""
        return row_names(self.reader, signal)

    def analysis(self) -> TaskResult:
        """Return the analysis of the run; it is begun, or begun again, if the files have changed since."""
        return analysed(self._tasks, self.key, self.reader.listing())

    @property
    def key(self) -> tuple[str, str, str]:
        """Key of the run's analysis among the tasks."""
        return ("analysis", self.place, self.directory)

    def diagnosis(self) -> tuple[Diagnosis, TaskResult]:
        """Return the findings, and the analysis as far as it has come."""
        with self.reader.lock:
            found = self.analysis()
            if found.answer is not None:
                return of_analysis(found.answer, self.label), found
            listing = self.reader.listing()
            marks, number = self._dumped.read(located(self.place), listing.run, Problems())
            return of_dump(marks, number, self.label, stages_of_ranks(listing.run)), found

    def label(self, signal: str, pp_stage: int, vpp_stage: int, name: str) -> str:
        """Return the label of a row."""
        if signal not in self.reader.listing().files and not self.reader.listing().databases:
            return name
        return self.names(signal).label(SurveyRow(pp_stage, vpp_stage, name))

    def order(self, title: str) -> list[int]:
        """Return the ranks in an order; by rank if there is none of this title."""
        table = self._table()
        orders = {order.title: order.lines for order in table.orders()}
        ranks: list[int] = table.ranks[orders.get(title, orders["rank"])].tolist()
        return ranks

    def attributes(self, rank: int) -> dict[str, str]:
        """Return what a rank has in common with others: its host, pipeline stage and group."""
        table = self._table()
        return table.about(rank) if len(table.ranks) > 1 else {}

    def _table(self) -> RankTable:
        with self.reader.lock:
            run = self.reader.listing().run
            if self._ranks is None or self._ranks[0] is not run:
                self._ranks = run, rank_table(run)
            return self._ranks[1]

    def _described(self, listing: RunListing) -> dict[str, Any]:
        rank = listing.run.ranks[0]
        with self.reader.rows([RUN], ranks=[rank]) as rows:
            numbers = number_names(rows, rank)
        return {
            "signals": list(self._signals(listing)),
            "numbers": numbers,
            "files": len(listing.stamps),
            "performance": STEP_SECONDS in numbers,
            "farthest": False,
            **run_description(listing.run, self._table()),
        }

    def _signals(self, listing: RunListing) -> Iterator[dict[str, Any]]:
        with self.reader.rows(list(listing.files), files=_ends(listing)) as rows:
            signals = {s: (rows.numbers(s), micro_stepped(rows, s)) for s in rows.signals if s != RUN}
        for signal, (ops, has_micro_steps) in sorted(
            signals.items(), key=lambda pair: (signal_of(pair[0]).phase, pair[0])
        ):
            names = self.names(signal)
            labels = [names.label(names.rows[n]) for n in names.order(names.rows)]
            yield signal_description(signal, ops, labels, has_micro_steps)


def analysed(tasks: BackgroundTasks, key: tuple[str, str, str], listing: RunListing) -> TaskResult:
    """Return the analysis of the run of a key; it is begun, or begun again, if the files have changed since."""
    return tasks.ask(key, analysis_arguments(*key[1:]), version_of(listing))


def version_of(listing: RunListing) -> str:
    """Return a text that differs between any two states of the files."""
    texts = sorted(f"{path} {stamp.size} {stamp.modified_ns}" for path, stamp in listing.stamps.items())
    return hashlib.sha256("\n".join(texts).encode("utf-8", "surrogateescape")).hexdigest()


def _ends(listing: RunListing) -> dict[str, list[tuple[int, Any]]]:
    """Return the first file of each signal, of each pipeline stage, and the last one of each directory."""
    stages = stages_of(listing.run.directories)
    found: dict[str, list[tuple[int, Any]]] = {}
    for signal, files in listing.files.items():
        last = {n: (n, file) for n, file in files}
        kept = {(n, file.path): (n, file) for n, file in (*first_files(files, stages), *last.values())}
        found[signal] = sorted(kept.values(), key=lambda pair: (pair[0], pair[1].first))
    return found
