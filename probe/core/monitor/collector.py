"""The collector: one attachment of a monitor, from beginning to end."""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from probe.core.backend.protocols import FrameworkAdapter
from probe.core.config.schema import Settings
from probe.core.control.armed_collection import ArmedCollection
from probe.core.control.command_requests import Command
from probe.core.control.commands import CommandInbox
from probe.core.control.planner import Configuration, Planner
from probe.core.door import attempt
from probe.core.faults import Faults
from probe.core.instrumentation.context import Listeners, Run
from probe.core.instrumentation.plan import Plan
from probe.core.instrumentation.schedule import Schedule
from probe.core.instrumentation.session import Session
from probe.core.instrumentation.signals import collectives
from probe.core.instrumentation.step_boundary import ForwardMarks, StepConsumer
from probe.core.monitor.alarms import Cause
from probe.core.monitor.process_exit import Endings, put_back
from probe.core.monitor.reporting import Reporting
from probe.core.monitor.run_closing import RunClosing
from probe.core.monitor.run_end import RunEnd
from probe.core.monitor.sentinel_attachment import attached
from probe.core.monitor.subject import Subject, warnings_for
from probe.core.output.folder import OutputFolder
from probe.core.output.manifest import Attached, ManifestWriter
from probe.core.output.pipeline import SnapshotListener
from probe.core.output.program_number import ProgramNumber
from probe.core.output.run_output import FLUSH_SECONDS, Output, StructureOutput
from probe.core.output.sinks import KEPT, Sink
from probe.core.output.sinks.context import SinkContext
from probe.core.run_state.rules.threshold import limits_of
from probe.core.run_state.run_numbers import RunNumbers
from probe.core.sentinel.run_account import RunAccount
from probe.core.storage.manifest import FILE
from probe.core.storage.run_directory import output_root, time_text

_runs = count()
"""Number of attachments in this process; the same on ranks that train together."""


UNSTEPPED = (
    "no training step was seen: the optimizer passed to set_monitor has taken none; pass the one that trains, after it "
    "is wrapped"
)
JUDGEMENT_SECONDS = 0.1
"""Longest wait for the judgement of a step with a loss that is not finite."""
WHERE = "end of the run"
"""Place of failures at the end."""
_log = logging.getLogger("probe")


class CollectiveWatch:
    """The listener of collectives of one monitor. It listens from the monitor's construction on, since there are
    collectives before there is a model."""

    def __init__(self, configuration: Configuration, framework: FrameworkAdapter, faults: Faults) -> None:
        self._configuration, self._framework = configuration, framework
        self._begin(faults)

    def _begin(self, faults: Faults) -> None:
        settings = self._configuration.settings
        self._listening = listening = collectives.of_configuration(settings, self._framework, faults)
        # ends listening for a monitor that is dropped without stop()
        self._dropped = weakref.finalize(self, listening.stop) if listening is not None else None

    def attach(self, run: Run, takes_part: bool) -> None:
        """Pass ``run`` the collectives of the step so far and all later ones."""
        if self._listening is None:  # stopped, and attached again
            self._begin(run.faults)
        if self._listening is not None:
            self._listening.attach(run, takes_part)

    def stop(self) -> None:
        """Stop listening until another run is attached."""
        if self._listening is not None:  # in an order that an interrupted call may repeat
            self._listening.stop()
            self._listening = None
        if self._dropped is not None:
            self._dropped.detach()


class Collector:
    """One attachment of a monitor, which applies plans. The hooks of its model keep it alive, even if the program drops
    the monitor.

    Args:
        collectives: the monitor's listener of collectives.
        process_group: the pipeline-parallel group.
        listeners: receive each step with its findings, on the delivery thread.

    Raises:
        Exception: if anything cannot be watched or written; then no hook or file stays behind.
    """

    def __init__(
        self,
        configuration: Configuration,
        subject: Subject,
        collectives: CollectiveWatch,
        process_group: Any,
        listeners: Listeners[SnapshotListener] | None = None,
    ) -> None:
        self._subject, self._collectives, self._process_group = subject, collectives, process_group
        self._listeners: Listeners[SnapshotListener] = Listeners() if listeners is None else listeners
        self.faults, self.number, self._began = subject.faults, next(_runs), time.time()
        self._inbox: CommandInbox | None = None
        self._warned_of_commands = False
        self.output: Output | None = None
        self.first = subject.attachment.start_iteration
        self._folder: OutputFolder | None = None
        self._folding = threading.RLock()
        self._ended_at: int | None = None
        self._narrowed: Subject | None = None
        """Subject from the next step on."""
        self._end = RunEnd()
        self.closing = self._new_closing(configuration.settings)
        """The account of the run, its summary and the board of the node."""
        with ExitStack() as undo:
            self._listeners.add(self.closing.account.rows)
            undo.callback(self._listeners.remove, self.closing.account.rows)
            groups = subject.framework.groups
            root = output_root(os.environ, configuration.settings.output_dir).absolute()
            self._program_number = ProgramNumber(root, groups, os.environ, self.faults)
            undo.callback(self._program_number.release)
            self._reporting = Reporting(
                configuration.settings, groups, self.first, subject.faults, self._program_number.number
            )
            undo.callback(self._reporting.close, 0.0)
            self.run = subject.run(Plan(configuration.settings, Schedule()), self.first)
            self._planner = Planner(configuration, subject.framework, self.number, self.first, self.faults)
            undo.callback(self._planner.close)
            plan = self._planner.plan
            self._planner.warn(warnings_for(configuration.settings, groups.world_size(), os.environ))
            session = self._new_session(plan, undo)
            self.numbers = self._new_numbers(configuration.settings, session.forwards)
            undo.callback(self.numbers.close, 0.0)
            self.judge, self._planner.armed = attached(
                session, configuration.settings, self.numbers, self._directory_of_checks, self.closing, self.faults
            )
            subject.check(plan, self.run, self._planner.lead)
            undo.pop_all()
        if plan.listens:
            collectives.attach(self.run, plan.takes_part)
        else:
            collectives.stop()
        self.session: Session | None = session
        """The session; None once it has ended."""
        self._leaving: Session | None = None
        """A session whose hooks are still in place, without effect."""
        if self.numbers.active:
            session.inform(self.numbers)
        self._endings = Endings(self._process_ends, self._terminated)
        self._reporting.metrics.client_began = self._endings.renew
        self._report_beginning()
        if not self._planner.dynamic:
            session.retire(self._retire)

    def _new_session(self, plan: Plan, undo: ExitStack) -> Session:
        """Return an attached session, with its output if this rank writes any; ``undo`` removes both."""
        if plan.takes_part and not plan.settings.print_struct:
            self.output = self._new_output(self.run, plan, self.first)
            undo.callback(self.output.discard)
        consumer = StructureOutput(self.faults) if plan.purpose == "structure" else self.output
        session = Session(self.run, plan.schedule, self.first, consumer, self._between)
        undo.callback(session.detach)
        session.attach(plan.sources)
        return session

    @property
    def _rank(self) -> int:
        """Rank in names, findings and reports: without a launcher the number in the program."""
        return self._subject.framework.groups.rank() + self._program_number.number

    @property
    def collecting(self) -> bool:
        """True if further rows will be collected."""
        return self.session is not None and self._planner.collecting

    @property
    def step(self) -> int:
        """Number of the training step in progress, or of the one in which the collector ended."""
        return self.run.clock.step if self._ended_at is None else self._ended_at

    def _new_closing(self, settings: Settings) -> RunClosing:
        account = RunAccount(settings, self._subject.framework.groups.rank(), self.number, self.first)
        return RunClosing(account, self.faults, weakref.WeakMethod(self._state))

    def _report_beginning(self) -> None:
        self._reporting.begun()
        self.closing.begin()

    def _state(self) -> tuple[int, str | None]:
        directory = self.output.directory if self.output is not None else None
        return self.step, str(directory) if directory is not None else None

    def flush(self, timeout: float = FLUSH_SECONDS) -> bool:
        """Wait until every finished step is written; return False if that takes longer than ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        written = self.output.flush(timeout) if self.output is not None else True
        return self.numbers.flush(max(0.0, deadline - time.monotonic())) and written

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
                self.session.inform(self.numbers)
        return self.numbers

    def _new_numbers(self, settings: Settings, forwards: ForwardMarks) -> RunNumbers:
        files = weakref.WeakMethod(self._files_of_numbers)  # the thread must not keep the model alive

        def context() -> tuple[SinkContext, Sequence[Sink]]:
            if (make := files()) is None:
                raise RuntimeError("the run has ended")
            return make()

        numbers = RunNumbers(settings, self._subject.framework, self.faults, context, self._reporting.marks, forwards)
        self._reporting.follow(numbers)
        numbers.on_findings(self.closing.account.run_found)
        numbers.listeners.append(self.closing.account.run_step)  # not listen(), which begins the numbers
        return numbers

    def _directory_of_checks(self) -> Path | None:
        """Return the directory of this rank's files; None if nothing is written. Called on the numbers' thread."""
        return self._made_folder(self.first).make() if set(self.run.settings.formats) - {KEPT} else None

    def _files_of_numbers(self) -> tuple[SinkContext, Sequence[Sink]]:
        """Return the context of the sinks of these numbers, and the sink that resumes a directory. Called on their
        thread."""
        folder, attached, settings = self._made_folder(self.first), self._attached(), self.run.settings
        directory = folder.make()
        if not (directory / FILE).exists():
            ManifestWriter(self.run, attached, None, folder.resumed).write(directory, {})
        context = SinkContext(
            directory=directory,
            root=folder.root,
            rank=attached.rank,
            steps_per_file=settings.run.steps_per_file,
            pp_stage=attached.pp_stage,
            group_mates=attached.mates,
            run=folder.name,
            start=attached.start,
            first_step=attached.first,
            resumed_at=folder.resumed.first if folder.resumed else None,
            run_numbers=True,
            options=settings.sink_options,
            metrics=self._reporting.metrics,
        )
        return context, [folder.resumed] if folder.resumed else []

    def obey_program(self) -> None:
        """Apply assigned values at once if nothing of the step in progress has been collected, else with the next."""
        if self.session is not None:
            self.session.settled = False
            self.session.at_once(self._of_program)

    # Commands to the program.

    def commands(self, accepts: Collection[type[Command]]) -> list[Command]:
        """Return the commands that take effect before the step that is about to begin."""
        if self.session is None:
            return []
        if self._inbox is None:
            try:
                self._inbox = self._planner.command_inbox(self.first, self._began)
            except RuntimeError as error:  # no thread can be started
                self.faults.note("commands", error)
                return []
        if self._inbox is None:
            if not self._warned_of_commands:
                self._warned_of_commands = True
                _log.warning("commands: none will come, since the configuration is no file beside which they could lie")
            return []
        return self._inbox.due(self.run.clock.step, accepts)

    # Plans.

    def narrow(self, models: Sequence[Any], optimizers: Sequence[Any]) -> None:
        """Watch these alone of the present models and optimizers, from the next step on."""
        self._narrowed = self._subject.narrowed(models, optimizers)
        if self.session is not None:
            self.session.settled = False

    def _between(self, step: int) -> None:
        """Apply every plan that takes effect with ``step``, which is about to begin."""
        if self.session is None:
            return
        self.session.settled = True  # first: the program may assign values meanwhile, on another thread
        try:
            self._apply_plans(step)
        finally:
            if self.session is not None and not self._planner.settled:
                self.session.settled = False

    def _apply_plans(self, step: int) -> None:
        if self.session is not None and self._narrowed is not None:
            before, self._subject, self._narrowed = self._subject, self._narrowed, None
            kept = {id(optimizer) for optimizer in self._subject.optimizers}
            self.session.release({id(optimizer) for optimizer in before.optimizers} - kept)
            self._apply(self._planner.plan, step)
        if self._planner.armed is not None:
            self._count_incident(self._planner.armed)
        if self.session is not None:
            for plan in self._planner.plans(step, None if self.output is None else self.output.news, self._account):
                if plan.origin == "sentinel":
                    self._apply_deeper(plan, step)
                else:
                    self._apply(plan, step)

    def _count_incident(self, armed: ArmedCollection) -> None:
        """Count what the step that has ended has cost, if everything is collected; wait for the judgement of one with a
        loss that is not finite."""
        if armed.active and self.session is not None:
            last = self.session.last
            armed.spend(self._account(), last[1].size if last is not None else 0)
        if armed.suspicious():
            self.numbers.process(JUDGEMENT_SECONDS)

    def _account(self) -> float:
        """Return the seconds that the monitor has taken so far, on all threads and on the device."""
        output = self.output
        return 0.0 if output is None else output.times.own + output.beside + output.on_device

    def _apply_deeper(self, plan: Plan, step: int) -> None:
        """Apply the plan of an incident; where that is impossible, go on as configured."""
        try:
            self._apply(plan, step)
        except Exception as error:  # noqa: BLE001 - what is configured is still collected
            if not isinstance(error, ValueError):  # the refusal of a model
                self.faults.note("collection around an incident", error)
            if self._planner.armed is not None:
                self._planner.armed.refuse((), " ".join(str(error).split()))
            if self._planner.plan is plan and plan.base is not None:
                self._apply(plan.base, step)

    def _of_program(self, step: int) -> None:
        for plan in self._planner.of_program(self.output is not None):
            self._apply(plan, step)

    def _apply(self, plan: Plan, step: int) -> None:
        """Apply ``plan`` from ``step`` on; if that is impossible, raise an error and change nothing."""
        if self.session is None:
            return
        run = self._subject.run(plan, step, self.output.directory if self.output is not None else None)
        if plan.origin == "configuration" and plan.purpose != "rest":
            self._subject.check(plan, run, self._planner.lead)
        if self.output is not None:
            self.output.follow(run, plan)
        elif plan.writes:  # module_ranks has changed
            self.output = self._new_output(run, plan, step)
            self.output.begin(plan)
        self._planner.accept(plan)
        if plan.restarts or not plan.listens:
            self._collectives.stop()
        self.run = run
        if limits_of(run.settings.alert.rules):
            self.listening_numbers()
        self.numbers.limit(run.settings.alert)
        consumer: StepConsumer | None = self.output if plan.writes or plan.purpose == "rest" else None
        if plan.purpose == "structure":
            consumer = StructureOutput(self.faults)
        self.session.change(run, plan.schedule, consumer, plan.sources)
        if plan.listens:
            self._collectives.attach(run, plan.takes_part)

    def _new_output(self, run: Run, plan: Plan, first: int) -> Output:
        follows, pace = self._planner.follows, plan.schedule.pace
        folder = self._made_folder(first)
        judged, metrics = self._reporting.found, self._reporting.metrics
        return Output(run, self._attached(first), folder, pace, follows, judged, self._listeners, metrics)

    def _made_folder(self, first: int) -> OutputFolder:
        """Return the directory of this run and rank; ``first`` is the first step that is written to it."""
        with self._folding:
            if self._folder is None:
                self._folder = OutputFolder(self.run.settings, self._rank, first)
            return self._folder

    def _attached(self, first: int | None = None) -> Attached:
        groups, first = self.run.framework.groups, self.first if first is None else first
        mates = tuple(groups.ranks_of(self._process_group)) if self._rank == groups.rank() else (self._rank,)
        return Attached(self.number, first, self._rank, mates, time_text(time.localtime()))

    # The end.

    def end(self, cause: Cause = "exit", error: BaseException | None = None) -> None:
        """Remove every hook, write all pending steps, close the files and send the last alerts. A call after an
        interrupted one goes on with what is left, whatever its arguments; any further call does nothing.

        At SIGTERM and after an exception, all of that takes ``alert.grace_seconds`` at most; else the last alerts alone
        do. What could not be sent stays on disk.

        Args:
            error: the exception that has interrupted training; then the unfinished step is written, too.
        """
        if not self._end.begun:
            self._end.begin(self._parts_of_end(cause, error))
        if self._end.interrupted:
            self._end.go_on(FLUSH_SECONDS if cause == "exit" else self._grace)
            return
        self._collectives.stop()
        put_back()
        attempt(self.faults, WHERE, self._detach)

    @property
    def ending(self) -> bool:
        """True if the end was interrupted: parts of it are left."""
        return self._end.interrupted

    @property
    def _grace(self) -> float:
        return self.run.settings.alert.grace_seconds

    def _parts_of_end(self, cause: Cause, error: BaseException | None) -> list[Callable[[], object]]:
        """Return the parts of the end, in order; a failure of one is counted."""
        partial_step, well = error is not None, cause == "exit" and error is None
        parts: list[Callable[[], object]] = [
            partial(self._reporting.ended, cause, self.run.clock.step, error),  # files may take all the time there is
            partial(self._end_session, partial_step),
            self._detach,
            self._collectives.stop,
            self._close_inbox,
            self._planner.close,
            partial(self._close_numbers, well),
            partial(self._close_output, partial_step),
            self._end_incident,
            self._close_reporting,
            self.closing.close,
            partial(self._listeners.remove, self.closing.account.rows),
            self._program_number.release,
            self._endings.forget,  # last: the end of the process goes on with an end that was interrupted
        ]
        return [partial(attempt, self.faults, WHERE, part) for part in parts]

    def _end_session(self, partial_step: bool) -> None:
        """Stop collecting; write the rows of an unfinished step if ``partial_step``."""
        if (session := self.session) is None:
            return
        self._leaving = session
        if partial_step:
            attempt(self.faults, WHERE, session.flush_partial)
        elif self.run.clock.step == self.first:
            _log.warning(UNSTEPPED)
        self._ended_at = self.run.clock.step
        self.session = None

    def _detach(self) -> None:
        if self._leaving is not None and self._leaving.detach():
            self._leaving = None

    def _close_inbox(self) -> None:
        if self._inbox is not None:
            self._inbox.close()

    def _close_numbers(self, well: bool) -> None:
        self.numbers.close(self._end.remaining, well)

    def _close_output(self, incident: bool) -> None:
        if self.output is not None:
            self.output.close(incident, self._end.remaining)

    def _end_incident(self) -> None:
        """Log the incident in progress, and write what its rows say."""
        if self._planner.armed is not None:
            self._planner.armed.end(self.step, "the run has ended")
        if self.judge is not None:
            self.judge.place(self.step)

    def _close_reporting(self) -> None:
        self._reporting.close(time.monotonic() + min(self._end.remaining, self._grace))

    def _retire(self) -> None:
        """Remove the hooks of a run whose schedule has ended, and close its files; if numbers of the run are recorded,
        go on counting steps."""
        if self.session is None or not self.numbers.active:
            self._process_ends("exit", None)
            return
        attempt(self.faults, WHERE, self.session.count_only)
        attempt(self.faults, WHERE, self._collectives.stop)
        if self.output is not None:
            attempt(self.faults, WHERE, self.output.close, False)

    def _process_ends(self, cause: Cause, error: BaseException | None) -> None:
        attempt(self.faults, WHERE, self.end, cause, error)

    def _terminated(self) -> None:
        """Write what is pending at a SIGTERM that the process may survive, and send an alert."""
        seconds = self.run.settings.alert.grace_seconds
        self._reporting.ended("sigterm", self.step)
        attempt(self.faults, WHERE, self.flush, seconds)

    def __del__(self) -> None:
        """End a run whose model, optimizer and monitor are dropped without ``stop()``; they keep each other alive. Wait
        for nothing, since this may run on any thread, even the delivery thread."""
        session, output = getattr(self, "session", None) or getattr(self, "_leaving", None), self.output
        if session is None and not self.ending:
            return
        if output is not None and not output.delivers:
            return
        self.session = None
        with ExitStack() as ending:
            if output is not None:
                ending.callback(attempt, self.faults, WHERE, output.let_go)
            ending.callback(attempt, self.faults, WHERE, self.numbers.let_go)
            ending.callback(attempt, self.faults, WHERE, self._reporting.metrics.close, 0.0)
            ending.callback(attempt, self.faults, WHERE, self._endings.forget)
            ending.callback(attempt, self.faults, WHERE, self._planner.close)
            ending.callback(attempt, self.faults, WHERE, self._collectives.stop)
            if session is not None:
                ending.callback(attempt, self.faults, WHERE, session.detach, True)
