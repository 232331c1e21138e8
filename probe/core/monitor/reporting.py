"""Account of a run, and its messages to people and to other processes: alerts, heartbeats, metrics, the progress that a
watcher reads. At the end, a summary for the parent process of the node or, without one, a line."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from probe.core.alerting.alerts import Alerts
from probe.core.backend.protocols import Groups
from probe.core.config.schema import Settings
from probe.core.door import attempt
from probe.core.faults import Faults
from probe.core.instrumentation.context import Listeners
from probe.core.messages import complain
from probe.core.monitor.alarms import Alarms, Cause, job_name
from probe.core.output.metrics.hub import MetricsHub, RankName
from probe.core.output.pipeline import SnapshotListener
from probe.core.output.program_number import claim_number
from probe.core.output.sinks import is_live
from probe.core.records import Finding
from probe.core.run_state.budget import Budget, OwnBudget, stillness
from probe.core.run_state.heartbeat_feed import HeartbeatFeed
from probe.core.run_state.progress import Progress, progress_folder
from probe.core.run_state.run_numbers import RunNumbers
from probe.core.run_state.watcher_process import WatcherProcess, WatcherSettings, ensure_watcher
from probe.core.sentinel.board import Board
from probe.core.sentinel.run_account import RunAccount
from probe.core.sentinel.watch_summary import RunReport, WatchSummary, report_of
from probe.core.storage.run_directory import output_root
from probe.core.verdict import JudgedFinding, Looked, Verdict, verdict_of
from probe.core.worker import LAST_SECONDS

WHERE = "reports of the run"
"""Place of failures."""
SUMMARY = "summary of the run"
"""Place of failures of the summary."""
RENEW_SECONDS = 1.0
"""Least time between two summaries of a run that goes on."""
ROWS_SECONDS = 1.0
"""Least time in which alerts are one message: rows name the place of what a check finds a moment later."""
State = Callable[[], tuple[int, str | None, tuple[float, float]] | None]


class Reporting:
    """Account, alerts, heartbeats, metrics and progress of one run on one rank, each if it is configured, and its
    summary.

    Args:
        number: number of the attachment, the same on all ranks.
        first: number of the first step.
        listeners: receive each step with its findings; the account is one of them until :meth:`release`.
        state: returns the number of the step in progress, the directory of the files, and the seconds of probe and of
            the steps without it; None if the run is gone.

    Raises:
        ValueError: if an address cannot be used.
        OSError: if the folder of the progress cannot be used.
    """

    def __init__(
        self,
        settings: Settings,
        groups: Groups,
        number: int,
        first: int,
        listeners: Listeners[SnapshotListener],
        state: State,
        faults: Faults,
    ) -> None:
        self._settings, self._faults, self._state, self._listeners = settings, faults, state, listeners
        self.account = RunAccount(settings, groups.rank(), number, first)
        self.board = Board.of(os.environ)
        """The board of the parent process; None without one."""
        self._summary_written = 0.0
        """Time of the monotonic clock at which a summary was written last."""
        self._summary_closed = False
        hang = settings.run.hang
        self._budget = hang.floor_seconds, hang.startup_seconds
        self._still = 0.0
        """Seconds for which the run had stood still when it was ended; 0 if it had not."""
        self._is_on_board = False
        """True if the progress is shown to the parent alone."""
        self._process = os.getpid()
        self._job = job_name(settings.run.job)
        self._root = output_root(os.environ, settings.output_dir).absolute()
        self._watcher: WatcherProcess | None = None
        rules = [*(rule.rule_name for rule in settings.alert.rules), *(rule.rule_name for rule in settings.run.rules)]
        program_number, self._release_number = claim_number(self._root, groups, os.environ, faults)
        self.rank = groups.rank() + program_number
        """The rank; without a launcher, the number of the run among those that live side by side in a program."""
        with ExitStack() as undo:
            undo.callback(self.release)
            self._launched = groups.world_size()
            self._ranks = max(self._launched, self.rank + 1)
            name = RankName(self._job, self.rank, self._ranks, socket.gethostname())
            self.metrics = MetricsHub(name, self._folder, rules, faults, settings.alert.grace_seconds)
            """Ways out for metrics of this rank, which its sinks share."""
            self.metrics.verdict = self._verdict
            listeners.add(self.account.rows)
            self._feed = self._new_feed(first)
            if self._feed is not None:
                undo.callback(self._feed.close, 0.0)
            self._alarms = self._new_alarms(first)
            if self._alarms is not None:
                undo.callback(self._alarms.close, 0.0)
            self.marks = self._new_marks()
            """Progress of this rank; None if nobody reads it."""
            undo.pop_all()

    def follow(self, numbers: RunNumbers) -> None:
        """Report the ``numbers`` of every step, and what rules find in them."""
        numbers.on_findings(self.account.run_found)  # first: alerts have the verdict of the account
        numbers.listeners.append(self.account.run_step)  # not listen(), which begins the numbers
        if self._watcher is not None:
            numbers.looks.append(self._watcher.look)
        elif self.marks is not None and not self._is_on_board:
            numbers.looks.append(self.marks.renew)
        if self._feed is not None and self.marks is not None:
            self._feed.judge_by(OwnBudget(self.marks, Budget(*self._budget)))
            numbers.looks.append(self._feed.look)
        numbers.on_findings(self.metrics.run_found)
        if self._feed is not None:
            numbers.on_findings(self._feed.run_found)
            numbers.listen(self._feed.step)
        if self._alarms is not None:
            numbers.on_findings(self._alarms.run_found)

    def begun(self) -> None:
        """Report that the run has begun; from now on, write to the board, if there is one, what is found."""
        if self._alarms is not None:
            attempt(self._faults, WHERE, self._alarms.begun)
        if self.board is not None:
            self.account.changed = self._renew_summary
            attempt(self._faults, SUMMARY, self._write_summary)

    def found(self, step: int, findings: Sequence[Finding]) -> None:
        """Report the findings of a sampled step; called with every such step from the first finding on, on the delivery
        thread."""
        self.metrics.found([finding.rule for finding in findings])
        for receiver in (self._alarms, self._feed):
            if receiver is not None:
                receiver.found(step, findings)

    def ended(self, cause: Cause, step: int, error: BaseException | None = None) -> None:
        """Report the end of the run and its cause."""
        self._still = 0.0
        if self.marks is not None and (cause != "exit" or error is not None):
            self._still = stillness(self.marks.row(), self.marks, Budget(*self._budget), time.monotonic_ns())
        if self._alarms is not None:  # to the disk first
            attempt(self._faults, WHERE, self._alarms.ended, cause, step, error)
        if self._feed is not None and error is not None:
            attempt(self._faults, WHERE, self._feed.failed, error)

    def close(self, deadline: float) -> None:
        """Send what is pending before ``deadline``, of the monotonic clock. Trackers end beside the last alerts."""
        attempt(self._faults, WHERE, self.metrics.ending)
        for sender in (self._alarms, self._feed, self.metrics):
            if sender is not None:
                attempt(self._faults, WHERE, sender.close, max(LAST_SECONDS, deadline - time.monotonic()))

    def release(self) -> None:
        """Leave the number in the program to later runs, and account for no further step. A further call does
        nothing."""
        self._listeners.remove(self.account.rows)
        self._release_number()

    # The summary.

    def close_summary(self) -> None:
        """Write the summary, or the line; a further call does nothing."""
        if self._summary_closed or os.getpid() != self._process:  # a forked child: the run is its parent's
            return
        self._summary_closed = True
        summary = self._summary(True)
        if summary is None:
            return
        if self.board is not None and self.board.is_read:
            attempt(self._faults, SUMMARY, self.board.summary, summary)
        elif not summary.steps:
            return
        elif self.account.is_grave or os.environ.get("LOCAL_RANK", str(summary.rank)) == "0":
            report = report_of([summary], alone=self._launched == 1)
            complain(report.line(), "warning" if report.verdict.kind or report.unknown else "info")

    def _verdict(self) -> Verdict | None:
        """Return the verdict about the run so far; None if the run is gone."""
        summary = self._summary(False)
        return None if summary is None else report_of([summary], alone=self._launched == 1).verdict

    def _report(self, since: int, finding: JudgedFinding) -> RunReport:
        """Return the report about what was found from a step on; about a finding if that is not among it."""
        summary = self._summary(False)
        if summary is None:
            return RunReport((), verdict_of([finding], Looked()), "", "")
        findings = tuple(f for f in summary.findings if f.step >= since and f.grade != "note")
        return report_of([summary._replace(findings=findings or (finding,))], alone=self._launched == 1, relative=False)

    def _renew_summary(self, at_once: bool) -> None:
        """Write the summary of a run that goes on, which may be killed."""
        if (
            not self._summary_closed
            and os.getpid() == self._process
            and (at_once or time.monotonic() - self._summary_written > RENEW_SECONDS)
        ):
            attempt(self._faults, SUMMARY, self._write_summary)

    def _write_summary(self) -> None:
        self._summary_written = time.monotonic()
        summary = self._summary(False)
        if self.board is not None and summary is not None:
            self.board.summary(summary)

    def _summary(self, ended: bool) -> WatchSummary | None:
        state = self._state()
        if state is None:
            return None
        step, directory, cost = state
        summary = self.account.summary(step, directory, self._faults.counts, ended, cost)
        return summary._replace(still=self._still, budget=self._budget)

    # Parts.

    def _new_feed(self, first: int) -> HeartbeatFeed | None:
        run = self._settings.run
        if run.server is None:
            return None
        feed = HeartbeatFeed(run.server, self._job, self.rank, self._ranks, self._faults, self._root / "heartbeats")
        feed.begun(first, run.hang.startup_seconds)
        return feed

    def _new_alarms(self, first: int) -> Alarms | None:
        if not self._settings.alert.channels:
            return None
        settings = self._settings.alert
        at_least = {"group_seconds": max(settings.group_seconds, ROWS_SECONDS)}
        settings = settings.model_copy(update=at_least)
        sender = Alerts(settings, job=self._job, rank=self.rank, directory=self._root, faults=self._faults)
        sender.start()
        return Alarms(sender, self._job, self.rank, first, self._report)

    def _new_marks(self) -> Progress | None:
        """Return the progress of this rank, in a file if another process reads it, and see to a watcher of the node."""
        watched = self._settings.run.hang.enable
        if not watched and not is_live(self._settings.formats):
            if self.board is not None and self._settings.sentinel.enable:
                self._is_on_board = True
                folder, name = self.board.folder, (self.rank, self._ranks, self._job)
                return attempt(self._faults, SUMMARY, Progress, folder, *name, False)
            return None if self._feed is None else Progress(None, self.rank, self._ranks, self._job)
        folder = self._folder()
        marks = Progress(folder, self.rank, self._ranks, self._job, watched)
        if not watched:
            return marks
        first = os.environ.get("LOCAL_RANK", "0" if self._launched == 1 else str(self.rank)) == "0"
        settings = WatcherSettings.of(self._settings, self._job, self._root)
        self._watcher = ensure_watcher(folder, settings, first, self._faults)
        return marks

    def _folder(self) -> Path:
        return progress_folder(self._job, self._root, self._launched)
