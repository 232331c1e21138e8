"""Sink for trackers of experiments."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import annotated_types as ranges
from pydantic import AfterValidator

from probe.core.child_process import python_module
from probe.core.faults import Faults
from probe.core.fields import Flag, Integer, Number, Section, Text, not_blank
from probe.core.messages import complain
from probe.core.naming import RUN
from probe.core.output.metrics.hub import MetricsHub
from probe.core.output.sinks.context import SinkContext
from probe.core.records import Snapshot
from probe.core.trackers import Cell, Notice, TrackerTarget, check_tracker, new_tracker
from probe.core.trackers.tracked_findings import NumberFinding, TrackedFindings, summary_of
from probe.core.trackers.tracked_series import MOST_FULL, MOST_SERIES, TrackedSeries
from probe.core.trackers.tracker_thread import BEGIN_SECONDS, Item, TrackerBudget, TrackerThread
from probe.core.verdict import Verdict


class TrackerSettings(Section):
    """Trackers of experiments, with ``format: wandb`` and its like. Read when the run begins."""

    project: Annotated[Text, AfterValidator(not_blank)] | None = None
    """Project of a run that probe begins. Missing: the name of the job. An active run of the program's is joined."""
    layers: tuple[Annotated[Text, AfterValidator(not_blank)], ...] = ()
    """Patterns such as `layers.0.*` of the names of rows about tensors that get series first. The others are those
    whose values are farthest from their own history; a series that is chosen once is kept."""
    full: Flag = False
    """true: 5,000 series of a run at most instead of 200. W&B advises less than 10,000 names in a project."""
    rank: Annotated[Integer, ranges.Ge(0)] = 0
    """The rank that writes: a run has one writer. `probe track` reads the files of all ranks."""
    seconds: Annotated[Number, ranges.Gt(0)] = 1.0
    """Time from one call of the tracker to the next, on a thread of its own."""
    max_overhead: Annotated[Number, ranges.Gt(0), ranges.Le(1)] = 0.001
    """Most processor time of a tracker as a part of training's time. Steps that would take more are left out there,
    those with findings never; a quarter of a second is free."""

    report: Flag = False
    """At the end, keep the page of `probe report` with the run, as far as the ranks have written then; made by another
    process, within `alert.grace_seconds`. `probe track` does so after all ranks have ended."""

    @property
    def series(self) -> int:
        """Most series of a run."""
        return MOST_FULL if self.full else MOST_SERIES


class TrackerOutlet:
    """A run in a tracker, shared by the sinks of rows about tensors and of numbers of the run.

    Args:
        name: name of the tracker.
        root: folder with the directories of all ranks.
        began: called when the tracker has begun.
        patience: see :class:`TrackerThread`.
        verdict: returns the verdict about the run so far.
    """

    def __init__(
        self,
        name: str,
        target: TrackerTarget,
        settings: TrackerSettings,
        rank: int,
        faults: Faults,
        root: Path | None = None,
        began: Callable[[], None] = lambda: None,
        patience: float = BEGIN_SECONDS,
        verdict: Callable[[], Verdict | None] = lambda: None,
    ) -> None:
        self._name, self._files, self._project = name, root, settings.project
        self._root = root if settings.report else None
        self._folder: TemporaryDirectory[str] | None = None
        self._series = TrackedSeries(settings.series, settings.layers)
        self._findings = TrackedFindings(rank, verdict)
        self._texts: dict[str, Cell] = {}
        self._shown = 0
        """Number of findings when the table was queued last."""
        self.budget = TrackerBudget(settings.max_overhead)
        """Account of its processor time."""
        self._skipped = 0
        """Steps, or numbers of steps, that were left out."""
        tracker = new_tracker(name, target)
        self._thread = TrackerThread(name, tracker, settings.seconds, faults, self._last, self.budget, began, patience)

    def take(self, snapshot: Snapshot) -> None:
        """Queue what the tracker gets of ``snapshot``."""
        about_tensors = not any(batch.signal == RUN for batch in snapshot.batches)
        if about_tensors:
            self._put_notices([self._findings.found(snapshot.step, snapshot.findings)])
        if not self.budget.admits(snapshot.step) and not snapshot.findings:
            self._skipped += 1
            return
        with self.budget.spending():
            row = self._series.of_snapshot(snapshot)
            if row.values:
                self._thread.put(row)
            if about_tensors:
                self._put_texts()

    def run_found(self, findings: Sequence[NumberFinding]) -> None:
        """Queue alerts about numbers of the run."""
        self._put_notices(self._findings.run_found(finding) for finding in findings)

    def _put_notices(self, notices: Iterable[Notice | None]) -> None:
        for notice in notices:
            if notice is not None:
                self._thread.put(notice)
        if self._findings.number > 2 * self._shown:  # the whole table each time
            self._shown = self._findings.number
            self._thread.put(self._findings.table)

    def _put_texts(self) -> None:
        texts = summary_of(self._series, self._findings)
        if texts != self._texts:
            self._texts = texts
            self._thread.put(texts)

    def _last(self) -> Iterator[Item]:
        if self._findings.number:
            yield self._findings.table
        yield {**summary_of(self._series, self._findings), "probe/rows_left_out": self._skipped}
        if self._root is not None:
            self._folder = TemporaryDirectory(prefix="probe-")
            yield report_page(self._root, Path(self._folder.name))

    def ending(self) -> None:
        """Have what waits handed over, and the run ended."""
        self._thread.ending()

    def close(self, seconds: float) -> None:
        """Hand over what waits and end the run, within ``seconds``."""
        missed = self._thread.close(seconds)
        if missed and self._files is not None:
            command = ["probe", "track", str(self._files), "--to", self._name]
            command += ["--project", self._project] if self._project is not None else []
            text = "{tracker} has not taken {number} rows; this sends all that are in files:\n{command}"
            complain(text, "warning", tracker=self._name, number=missed, command=shlex.join(command))
        if self._folder is not None:
            self._folder.cleanup()


class TrackerSink:
    """Writer of numbers of the run, or of tensors, to the outlet that both share.

    Args:
        name: name of the tracker.
    """

    def __init__(self, name: str, context: SinkContext) -> None:
        self._name, self._context = name, context
        options = context.options.get("trackers")
        self._settings = options if isinstance(options, TrackerSettings) else TrackerSettings()
        self._outlet: TrackerOutlet | None = None

    def open(self) -> None:
        """Make the outlet on the rank that writes, unless it is there.

        Raises:
            ImportError: if the tracker is not installed.
        """
        hub = self._context.metrics
        if hub is None:
            raise RuntimeError(f"format: {self._name}: it needs a running monitor")
        if self._context.rank == self._settings.rank:
            check_tracker(self._name, f"format: {self._name}")
            self._outlet = hub.outlet(self._name, TrackerOutlet, self._new_outlet)

    def _new_outlet(self, hub: MetricsHub) -> TrackerOutlet:
        name, settings = hub.name, self._settings
        facts: Mapping[str, Cell] = {"job": name.job, "ranks": name.ranks, "host": name.host, "run": self._context.run}
        target = TrackerTarget(settings.project or name.job, self._context.run, facts)
        outlet = TrackerOutlet(
            self._name,
            target,
            settings,
            name.rank,
            hub.faults,
            self._context.root,
            hub.began,
            hub.patience,
            hub.verdict,
        )
        hub.receivers.append(outlet.run_found)
        return outlet

    def write(self, snapshot: Snapshot) -> None:
        """Queue what the tracker gets of ``snapshot``."""
        if self._outlet is not None:
            self._outlet.take(snapshot)

    def close(self) -> None:
        """Do nothing: the outlet stays until the run ends."""


def report_page(root: Path, folder: Path) -> Path:
    """Return the report of the run in ``root``, made in ``folder`` by another process.

    Raises:
        RuntimeError: if it cannot be made.
    """
    path = folder / "report.html"
    command = python_module("probe", "report", str(root), "--out", str(path), "--no-judge")
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - of its own
    if not path.exists():
        raise RuntimeError(f"the report was not made: {done.stderr.strip()[-500:]}")
    return path
