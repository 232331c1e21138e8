"""One attachment of a monitor: all that is made for it, and the end of each, in :meth:`Attachment._parts_of_end`.

The hooks of the model keep it alive, even if the program drops the monitor.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

from probe.core.config.schema import Settings
from probe.core.control.planner import Configuration, Planner
from probe.core.door import attempt
from probe.core.instrumentation.context import Listeners, Run
from probe.core.instrumentation.plan import Plan
from probe.core.instrumentation.schedule import Schedule
from probe.core.instrumentation.session import WHERE, Session
from probe.core.instrumentation.signals.collectives import Listening
from probe.core.instrumentation.step_boundary import StepBoundary
from probe.core.instrumentation.training_steps import Between
from probe.core.monitor.alarms import Cause
from probe.core.monitor.process_exit import Endings, restore_handler, while_alive
from probe.core.monitor.reporting import Reporting
from probe.core.monitor.sentinel_attachment import attached
from probe.core.monitor.subject import Subject, strangers, warnings_for
from probe.core.output.folder import OutputFolder
from probe.core.output.pipeline import SnapshotListener
from probe.core.output.program_number import claim_number
from probe.core.output.run_output import FLUSH_SECONDS, Output, StructureOutput
from probe.core.output.sinks import KEPT, Sink
from probe.core.output.sinks.context import SinkContext
from probe.core.run_state.run_numbers import RunNumbers
from probe.core.sentinel.run_account import RunAccount
from probe.core.storage.run_directory import output_root

_runs = count()
"""Number of attachments in this process; the same on ranks that train together."""
UNSTEPPED = (
    "no training step was seen: the optimizer passed to set_monitor has taken none; pass the one that trains, after it "
    "is wrapped"
)
_log = logging.getLogger("probe")


class Attachment:
    """An attachment, from ``set_monitor`` to its end.

    Args:
        listening: the monitor's listener of collectives.
        process_group: the pipeline-parallel group.
        between: called between steps with the number of the next one.
        listeners: receive each step with its findings, on the delivery thread.

    Raises:
        Exception: if anything cannot be watched or written; then no hook or file stays behind.
    """

    def __init__(
        self,
        configuration: Configuration,
        subject: Subject,
        listening: Listening,
        process_group: Any,
        between: Between,
        listeners: Listeners[SnapshotListener],
    ) -> None:
        self._subject, self._listening, self._process_group = subject, listening, process_group
        self._between, self._listeners = between, listeners
        self.faults, self.number, self.first = subject.faults, next(_runs), subject.first
        self.output: Output | None = None
        self._folder: OutputFolder | None = None
        self._folding = threading.RLock()
        self._ended_at: int | None = None
        self.session: Session | None = None
        """The session; None once it has ended."""
        self._leaving: Session | None = None
        """A session whose hooks are still in place, without effect."""
        self._parts: deque[Callable[[], object]] | None = None
        """Parts of the end that are left; None before the end."""
        self._deadline = 0.0
        """Time of the monotonic clock until which the parts of the end may wait."""
        self._cause: Cause = "exit"
        """Cause of the end."""
        self._error: BaseException | None = None
        """Exception that has interrupted training."""
        with ExitStack() as undo:
            self._report(configuration.settings, undo)
            session = self._collect(configuration, undo)
            undo.pop_all()
        self._begin(session)

    def _report(self, settings: Settings, undo: ExitStack) -> None:
        """Make the account of the run and what sends and shows it; ``undo`` removes them."""
        groups = self._subject.framework.groups
        self.account = RunAccount(settings, groups.rank(), self.number, self.first)
        self._listeners.add(self.account.rows)
        undo.callback(self._remove_account)
        root = output_root(os.environ, settings.output_dir).absolute()
        self._program_number, self._release_number = claim_number(root, groups, os.environ, self.faults)
        undo.callback(self._release_number)
        state, number = while_alive(self._state), self._program_number
        self.reporting = Reporting(settings, groups, self.account, state, self.faults, number)
        undo.callback(self.reporting.close, 0.0)

    def _collect(self, configuration: Configuration, undo: ExitStack) -> Session:
        """Return the attached session; make the planner, the output, the numbers of the run and the sentinel. ``undo``
        removes them."""
        settings, subject = configuration.settings, self._subject
        self.run = subject.run(Plan(settings, Schedule()), self.first)
        self.planner = Planner(configuration, subject.framework, self.number, self.first, self.faults)
        undo.callback(self.planner.close)
        self.planner.warn(warnings_for(settings, subject.framework.groups.world_size(), os.environ))
        session = self._new_session(self.planner.plan, undo)
        self.numbers = self._new_numbers(settings, session.steps.boundary)
        undo.callback(self.numbers.close, 0.0)
        self.judge, self.planner.armed = attached(
            session, settings, self.numbers, while_alive(self._directory_of_checks), self.reporting, self.faults
        )
        subject.check(self.planner.plan, self.run, self.planner.lead)
        self.planner.warn(strangers(self.run))
        return session

    def _begin(self, session: Session) -> None:
        """Begin the run: everything is made."""
        plan = self.planner.plan
        if plan.listens:
            self._listening.attach(self.run, plan.takes_part)
        else:
            self._listening.stop()
        self.session = session
        if self.numbers.active:
            session.steps.run_listener = self.numbers
        self._endings = Endings(self._process_ends, self._process_survives)
        self.reporting.metrics.client_began = self._endings.renew
        self.reporting.begun()
        if not self.planner.dynamic:
            session.end_by_itself(self._schedule_ends)

    def _new_session(self, plan: Plan, undo: ExitStack) -> Session:
        """Return an attached session, with its output if this rank writes any; ``undo`` removes both."""
        if plan.takes_part and not plan.settings.print_struct:
            self.output = self.new_output(self.run, plan, self.first)
            undo.callback(self.output.discard)
        consumer = StructureOutput(self.faults) if plan.purpose == "structure" else self.output
        session = Session(self.run, plan.schedule, self.first, consumer, self._between)
        undo.callback(session.detach)
        session.attach(plan.sources)
        return session

    @property
    def step(self) -> int:
        """Number of the training step in progress, or of the one in which the attachment ended."""
        return self.run.clock.step if self._ended_at is None else self._ended_at

    def _state(self) -> tuple[int, str | None, tuple[float, float]]:
        directory = self.output.directory if self.output is not None else None
        cost = self.run.cost
        return self.step, str(directory) if directory is not None else None, (cost.total, cost.seconds - cost.own)

    def flush(self, timeout: float = FLUSH_SECONDS) -> bool:
        """Wait until every finished step is written; return False if that takes longer than ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        written = self.output.flush(timeout) if self.output is not None else True
        return self.numbers.flush(max(0.0, deadline - time.monotonic())) and written

    # Files.

    def new_output(self, run: Run, plan: Plan, first: int) -> Output:
        """Return the output of this rank for the steps of ``run``, from ``first`` on."""
        judged, metrics = self.reporting.found, self.reporting.metrics
        pace, follows = plan.schedule.pace, self.planner.follows
        return Output(run, self._made_folder(first), first, pace, follows, judged, self._listeners, metrics)

    def _made_folder(self, first: int) -> OutputFolder:
        """Return the directory of this run and rank; ``first`` is the first step that is written to it."""
        with self._folding:
            if self._folder is None:
                groups = self.run.framework.groups
                rank = groups.rank() + self._program_number  # without a launcher the number in the program
                mates = tuple(groups.ranks_of(self._process_group)) if rank == groups.rank() else (rank,)
                self._folder = OutputFolder(self.run.settings, self.number, rank, mates, first)
            return self._folder

    def _directory_of_checks(self) -> Path | None:
        """Return the directory of this rank's files; None if nothing is written. Called on the numbers' thread."""
        return self._made_folder(self.first).make() if set(self.run.settings.formats) - {KEPT} else None

    def _files_of_numbers(self) -> tuple[SinkContext, Sequence[Sink]]:
        """Return the context of the sinks of these numbers, and the sink that resumes a directory. Called on their
        thread."""
        folder, metrics = self._made_folder(self.first), self.reporting.metrics
        folder.begin_alone(self.run, self.first)
        context = folder.context(folder.make(), self.run.settings, self.first, metrics, run_numbers=True)
        return context, [folder.resumed] if folder.resumed else []

    # Numbers of the run.

    def listening_numbers(self) -> RunNumbers | None:
        """Return the numbers of the run, which are recorded from now on; None if the run has ended."""
        if self.session is None:
            return None
        if not self.numbers.active:
            try:
                self.numbers.begin(self.step - 1 if self.step > self.first else None)
            except RuntimeError as error:  # no thread can be started
                self.faults.note("numbers of the run", error)
                return None
            if self.numbers.active:
                self.session.steps.run_listener = self.numbers
        return self.numbers

    def _new_numbers(self, settings: Settings, boundary: StepBoundary) -> RunNumbers:
        files = while_alive(self._files_of_numbers)  # the thread must not keep the model alive
        numbers = RunNumbers(settings, self._subject.framework, self.faults, files, self.reporting.marks, boundary)
        numbers.on_findings(self.account.run_found)  # first: alerts have the verdict of the account
        self.reporting.follow(numbers)
        numbers.listeners.append(self.account.run_step)  # not listen(), which begins the numbers
        return numbers

    # The end.

    def end(self, cause: Cause = "exit", error: BaseException | None = None) -> None:
        """Remove every hook, write all pending steps, close the files and send the last alerts. A call after an
        interrupted one goes on with what is left, whatever its arguments; any further call does nothing.

        At SIGTERM and after an exception, all of that takes ``alert.grace_seconds`` at most; else the last alerts alone
        do. What could not be sent stays on disk.

        Args:
            error: the exception that has interrupted training; then the unfinished step is written, too.
        """
        if self._parts is None:
            self._cause, self._error = cause, error
            self._parts = deque(self._parts_of_end())
        if self._parts:
            self._deadline = time.monotonic() + (FLUSH_SECONDS if cause == "exit" else self._grace)
            self._do(self._parts)
            return
        self._listening.stop()
        restore_handler()
        attempt(self.faults, WHERE, self._detach)

    def _parts_of_end(self) -> list[Callable[[], object]]:
        """Return the parts of the end, in order. Each can be called twice: one that is interrupted (Ctrl-C, a signal
        handler that raises) is done again by the next call of :meth:`end`."""
        return [
            self._report_end,  # first: files may take all the time there is
            self._end_session,
            self._detach,
            self._listening.stop,
            self.planner.close_commands,
            self.planner.close,
            self._close_numbers,
            self._close_output,
            self._end_incident,
            self._close_reporting,
            self.reporting.close_summary,
            self._remove_account,
            self._release_number,
            self._endings.remove,  # last: the end of the process goes on with an end that was interrupted
        ]

    def _do(self, parts: deque[Callable[[], object]]) -> None:
        """Do the parts that are left; a failure of one is counted. Callable inside a signal handler that has
        interrupted it."""
        while parts:
            part = parts[0]
            attempt(self.faults, WHERE, part)
            if parts and parts[0] is part:  # else a signal handler has gone on
                parts.popleft()

    @property
    def ending(self) -> bool:
        """True if the end was interrupted: parts of it are left."""
        return bool(self._parts)

    @property
    def _grace(self) -> float:
        return self.run.settings.alert.grace_seconds

    @property
    def _remaining(self) -> float:
        """Seconds that the end may still wait."""
        return max(0.0, self._deadline - time.monotonic())

    def _report_end(self) -> None:
        self.reporting.ended(self._cause, self.run.clock.step, self._error)

    def _end_session(self) -> None:
        """Stop collecting; write the rows of an unfinished step if an exception has interrupted it."""
        if (session := self.session) is None:
            return
        self._leaving = session
        if self._error is not None:
            attempt(self.faults, WHERE, session.steps.flush_partial)
        elif self.run.clock.step == self.first:
            _log.warning(UNSTEPPED)
        self._ended_at = self.run.clock.step
        self.session = None

    def _detach(self) -> None:
        if self._leaving is not None and self._leaving.detach():
            self._leaving = None

    def _close_numbers(self) -> None:
        self.numbers.close(self._remaining, self._cause == "exit" and self._error is None)

    def _close_output(self) -> None:
        if self.output is not None:
            self.output.close(self._error is not None, self._remaining)

    def _end_incident(self) -> None:
        """Log the incident in progress, and write what its rows say."""
        if self.planner.armed is not None:
            self.planner.armed.end(self.step, "the run has ended")
        if self.judge is not None:
            self.judge.place(self.step)

    def _close_reporting(self) -> None:
        self.reporting.close(time.monotonic() + min(self._remaining, self._grace))

    def _remove_account(self) -> None:
        self._listeners.remove(self.account.rows)

    # Ends that the program does not ask for.

    def _schedule_ends(self) -> None:
        """Remove the hooks of a run whose schedule has ended, and close its files; if numbers of the run are recorded,
        go on counting steps."""
        if self.session is None or not self.numbers.active:
            self._process_ends("exit", None)
            return
        attempt(self.faults, WHERE, self.session.count_only)
        attempt(self.faults, WHERE, self._listening.stop)
        if self.output is not None:
            attempt(self.faults, WHERE, self.output.close, False)

    def _process_ends(self, cause: Cause, error: BaseException | None) -> None:
        attempt(self.faults, WHERE, self.end, cause, error)

    def _process_survives(self) -> None:
        """Write what is pending at a SIGTERM that the process may survive, and send an alert."""
        self.reporting.ended("sigterm", self.step)
        attempt(self.faults, WHERE, self.flush, self._grace)

    def __del__(self) -> None:
        """End a run whose model, optimizer and monitor are dropped without ``stop()``; they keep each other alive. Wait
        for nothing, since this may run on any thread, even the delivery thread."""
        session, output = getattr(self, "session", None) or getattr(self, "_leaving", None), self.output
        if session is None and not self.ending:
            return
        if output is not None and not output.delivers:
            return
        self.session = None
        with ExitStack() as ending:  # the last first
            if output is not None:
                ending.callback(attempt, self.faults, WHERE, output.close_unattended)
            ending.callback(attempt, self.faults, WHERE, self.numbers.close_unattended)
            ending.callback(attempt, self.faults, WHERE, self.reporting.metrics.close, 0.0)
            ending.callback(attempt, self.faults, WHERE, self._endings.remove)
            ending.callback(attempt, self.faults, WHERE, self.planner.close)
            ending.callback(attempt, self.faults, WHERE, self._listening.stop)
            if session is not None:
                ending.callback(attempt, self.faults, WHERE, session.detach, True)
