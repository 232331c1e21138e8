"""One attachment of a monitor: all that is made for it; the plans that change what it collects; and the end of each
part, in :meth:`Attachment._parts_of_end`.

The hooks of the model keep it alive, even if the program drops the monitor.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

from probe.core.control.armed_collection import ArmedCollection
from probe.core.control.command_requests import Command
from probe.core.control.planner import Configuration, Planner
from probe.core.door import attempt
from probe.core.faults import Faults
from probe.core.instrumentation.context import Listeners, Run
from probe.core.instrumentation.plan import Plan
from probe.core.instrumentation.schedule import Schedule
from probe.core.instrumentation.session import WHERE, Session
from probe.core.instrumentation.signals.collectives import Listening
from probe.core.instrumentation.step_boundary import StepConsumer
from probe.core.monitor.alarms import Cause
from probe.core.monitor.process_exit import Endings, restore_handler, while_alive
from probe.core.monitor.reporting import Reporting
from probe.core.monitor.sentinel_attachment import attached
from probe.core.monitor.subject import Subject, strangers, warnings_for
from probe.core.output.folder import OutputFolder
from probe.core.output.pipeline import SnapshotListener
from probe.core.output.run_output import FLUSH_SECONDS, Output, StructureOutput
from probe.core.output.sinks import KEPT, Sink
from probe.core.output.sinks.context import SinkContext
from probe.core.run_state.rules.threshold import limits_of
from probe.core.run_state.run_numbers import RunNumbers

_runs = count()
"""Number of attachments in this process; the same on ranks that train together."""
JUDGEMENT_SECONDS = 0.1
"""Longest wait for the judgement of a step with a loss that is not finite."""
UNLEFT = (
    "phase: expected that each is left before the run ends, got %s, which lasted until now: its time counts all steps "
    "since; write `with monitor.phase(...):`"
)
UNSTEPPED = (
    "no training step was seen: expected updates by the optimizer passed to set_monitor, got none; call its step(), or "
    "pass the one that trains, after it is wrapped, and call stop() after training"
)
_log = logging.getLogger("probe")


class Attachment:
    """An attachment, from ``set_monitor`` to its end. All plans are applied to it, each at a step boundary.

    Args:
        listening: the monitor's listener of collectives.
        process_group: the pipeline-parallel group.
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
        listeners: Listeners[SnapshotListener],
    ) -> None:
        self._subject, self._listening, self._process_group = subject, listening, process_group
        self._listeners, self._made_at = listeners, time.time()
        self._narrowed: Subject | None = None
        """Subject from the next step on."""
        self.faults, self.number, self.first = subject.faults, next(_runs), subject.first
        self.output: Output | None = None
        self._folder: OutputFolder | None = None
        self._folding = threading.RLock()
        self._operations = 0
        """Operations that have entered graphs in training mode after the last update."""
        self._ended_at: int | None = None
        self.process = os.getpid()
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
        groups, state = subject.framework.groups, while_alive(self._state)
        with ExitStack() as undo:
            self.reporting = Reporting(
                configuration.settings, groups, self.number, self.first, listeners, state, self.faults
            )
            undo.callback(self.reporting.release)
            undo.callback(self.reporting.close, 0.0)
            session = self._collect(configuration, undo)
            undo.pop_all()
        self._begin(session)

    def _collect(self, configuration: Configuration, undo: ExitStack) -> Session:
        """Return the attached session; make the planner, the output, the numbers of the run and the sentinel. ``undo``
        removes them."""
        settings, subject = configuration.settings, self._subject
        self.run = subject.run(Plan(settings, Schedule()), self.first)
        self._subject = subject.narrowed(subject.models, ())  # the program may make its optimizers anew, and drop these
        self.planner = Planner(configuration, subject.framework, self.number, self.first, self.faults)
        undo.callback(self.planner.close)
        self.planner.warn(warnings_for(settings, subject.framework.groups.world_size(), os.environ))
        session = self._new_session(self.planner.plan, undo)
        files = while_alive(self._files_of_numbers)  # the thread must not keep the model alive
        boundary, marks = session.steps.boundary, self.reporting.marks
        self.numbers = RunNumbers(settings, subject.framework, self.faults, files, marks, boundary)
        self.reporting.follow(self.numbers)
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
            self.output = self._new_output(self.run, plan, self.first)
            undo.callback(self.output.discard)
        session = Session(self.run, plan.schedule, self.first, self._consumer(plan), self._between)
        undo.callback(session.detach)
        session.attach(plan.sources)
        return session

    @property
    def step(self) -> int:
        """Number of the training step in progress, or of the one in which the attachment ended."""
        return self.run.clock.step if self._ended_at is None else self._ended_at

    def _state(self) -> tuple[int, str | None, tuple[float, float]]:
        directory, cost = None if self.output is None else self.output.directory, self.run.cost
        seconds = cost.total, cost.seconds - cost.on_training
        return self.step, None if directory is None else str(directory), seconds

    def flush(self, timeout: float = FLUSH_SECONDS) -> bool:
        """Wait until every finished step is written; return False if that takes longer than ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        written = self.output is None or self.output.flush(timeout)
        return self.numbers.flush(max(0.0, deadline - time.monotonic())) and written

    # Plans.

    @property
    def collecting(self) -> bool:
        """True if further rows will be collected."""
        return self.session is not None and self.planner.collecting

    def obey_program(self) -> None:
        """Apply assigned values at once if nothing of the step in progress has been collected, else with the next."""
        if (session := self.session) is not None:
            session.steps.unsettle()
            session.steps.at_once(self._apply_assigned)

    def commands(self, accepts: Collection[type[Command]]) -> list[Command]:
        """Return the commands that take effect before the step that is about to begin."""
        if self.session is None:
            return []
        return self.planner.commands(self.run.clock.step, accepts, self.first, self._made_at)

    def narrow(self, models: Sequence[Any], optimizers: Sequence[Any]) -> None:
        """Watch these alone of the present models and optimizers, from the next step on."""
        self._narrowed = self._subject.narrowed(models, optimizers)
        if (session := self.session) is not None:
            session.steps.unsettle()

    def _between(self, step: int) -> None:
        """Apply every plan that takes effect with ``step``, which is about to begin."""
        if (session := self.session) is None:
            return
        session.steps.settled = True  # first: the program may assign values meanwhile, on another thread
        try:
            self._apply_plans(step)
        finally:
            if not self.planner.settled:
                session.steps.unsettle()

    def _apply_plans(self, step: int) -> None:
        if self._narrowed is not None:
            self._apply_narrowed(self._narrowed, step)
        if self.planner.armed is not None:
            self._count_incident(self.planner.armed)
        if self.session is not None:
            news = None if self.output is None else self.output.news
            for plan in self.planner.plans(step, news, lambda: self.run.cost.total):
                if plan.origin == "sentinel":
                    self._apply_deeper(plan, step)
                else:
                    self._apply(plan, step)

    def _apply_narrowed(self, narrowed: Subject, step: int) -> None:
        self._subject, self._narrowed = narrowed.narrowed(narrowed.models, ()), None
        if (session := self.session) is not None:
            session.steps.release({*map(id, session.steps.run.optimizers)} - {*map(id, narrowed.optimizers)})
            self._apply(self.planner.plan, step)

    def _count_incident(self, armed: ArmedCollection) -> None:
        """Count what the step that has ended has cost, if everything is collected; wait for the judgement of one with a
        loss that is not finite."""
        if armed.active and (session := self.session) is not None:
            last = session.steps.last
            armed.spend(self.run.cost.total, last[1].size if last is not None else 0)
        if armed.suspicious():
            self.numbers.process(JUDGEMENT_SECONDS)

    def _apply_deeper(self, plan: Plan, step: int) -> None:
        """Apply the plan of an incident; where that is impossible, go on as configured."""
        try:
            self._apply(plan, step)
        except Exception as error:  # noqa: BLE001 - what is configured is still collected
            if not isinstance(error, ValueError):  # the refusal of a model
                self.faults.note("collection around an incident", error)
            if self.planner.armed is not None:
                self.planner.armed.refuse((), " ".join(str(error).split()))
            if self.planner.plan is plan and plan.base is not None:
                self._apply(plan.base, step)

    def _apply_assigned(self, step: int) -> None:
        for plan in self.planner.of_program(self.output is not None):
            self._apply(plan, step)

    def _apply(self, plan: Plan, step: int) -> None:
        """Apply ``plan`` from ``step`` on; if that is impossible, raise an error and change nothing."""
        if (session := self.session) is None:
            return
        output = self.output
        subject = self._subject.narrowed(self._subject.models, session.steps.run.optimizers)
        run = subject.run(plan, step, None if output is None else output.directory)
        if plan.origin == "configuration" and plan.purpose != "rest":
            subject.check(plan, run, self.planner.lead)
        if output is not None:
            output.follow(run, plan)
        elif plan.writes:  # module_ranks has changed
            self.output = output = self._new_output(run, plan, step)
            output.begin(plan)
        self.planner.accept(plan)
        if plan.restarts or not plan.listens:
            self._listening.stop()
        self.run = run
        if limits_of(run.settings.alert.rules):
            self.listening_numbers()
        self.numbers.limit(run.settings.alert)
        session.change(run, plan.schedule, self._consumer(plan), plan.sources)
        if plan.listens:
            self._listening.attach(run, plan.takes_part)

    def _consumer(self, plan: Plan) -> StepConsumer | None:
        """Return the receiver of the steps of ``plan``."""
        if plan.purpose == "structure":
            return StructureOutput(self.faults)
        return self.output if plan.writes or plan.purpose == "rest" else None

    # Files.

    def _new_output(self, run: Run, plan: Plan, first: int) -> Output:
        """Return the output of this rank for the steps of ``run``, from ``first`` on."""
        judged, metrics = self.reporting.found, self.reporting.metrics
        pace, follows = plan.schedule.pace, self.planner.follows
        return Output(run, self._made_folder(first), first, pace, follows, judged, self._listeners, metrics)

    def _made_folder(self, first: int) -> OutputFolder:
        """Return the directory of this run and rank; ``first`` is the first step that is written to it."""
        with self._folding:
            if self._folder is None:
                groups, rank = self.run.framework.groups, self.reporting.rank
                mates = tuple(groups.ranks_of(self._process_group)) if rank == groups.rank() else (rank,)
                self._folder = OutputFolder(self.run.settings, self.number, rank, mates, first)
            return self._folder

    def _directory_of_checks(self) -> Path | None:
        """Return the directory of this rank's files; None if nothing is written. Called on the numbers' thread."""
        return self._made_folder(self.first).make() if set(self.run.settings.formats) - {KEPT} else None

    def _files_of_numbers(self) -> tuple[SinkContext, Sequence[Sink]]:
        """Return what :class:`RunNumbers` writes to. Called on its thread."""
        return self._made_folder(self.first).files_of_numbers(self.run, self.first, self.reporting.metrics)

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
            _end_all(self._parts, self.faults)
            return
        self._listening.stop()
        restore_handler()
        attempt(self.faults, WHERE, self._detach)
        attempt(self.faults, WHERE, self._release)

    def _parts_of_end(self) -> list[Callable[[], object]]:
        """Return the parts of the end, in order. Each can be called twice: one that is interrupted (Ctrl-C, a signal
        handler that raises) is done again by the next call of :meth:`end`."""
        return [
            self._report_end,  # first: files may take all the time there is
            self._note_operations,
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
            self.reporting.release,
            self._endings.remove,  # late: the end of the process goes on with an end that was interrupted
            self._release,
        ]

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

    def _note_operations(self) -> None:
        loop, models = self.run.framework.loop, [model for _, model in self.run.chunks]
        if self.session is not None and self.judge is not None and loop is not None and loop.training(models):
            self._operations = self.session.steps.boundary.operations or 0

    def _end_session(self) -> None:
        """Stop collecting; end a step that waits for further updates, and write the rows of one that an exception has
        interrupted."""
        if (session := self.session) is None:
            return
        self._leaving = session
        if self._error is not None:
            attempt(self.faults, WHERE, session.steps.flush_partial)
        else:
            session.steps.end_updated()
            if self.run.clock.step == self.first:
                _log.warning(UNSTEPPED)
        if self._cause == "exit" and (names := ", ".join(self.numbers.open_phases)):
            _log.warning(UNLEFT, names)
        self._ended_at = self.run.clock.step
        self.session = None

    def _detach(self) -> None:
        if self._leaving is not None and self._leaving.detach():
            self._leaving = None

    def _release(self) -> None:
        """Let go of models and optimizers: a program may keep the monitor, and go on without them."""
        if self._leaving is None:
            self._subject, self._narrowed = self._subject.narrowed((), ()), None
            self.run.release()

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
            self.judge.end(self._operations)

    def _close_reporting(self) -> None:
        self.reporting.close(time.monotonic() + min(self._remaining, self._grace))

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


def _end_all(parts: deque[Callable[[], object]], faults: Faults) -> None:
    """Call the parts of an end that are left; a failure of one is counted. Callable inside a signal handler that has
    interrupted it."""
    while parts:
        part = parts[0]
        attempt(faults, WHERE, part)
        if parts and parts[0] is part:  # else a signal handler has gone on
            parts.popleft()
