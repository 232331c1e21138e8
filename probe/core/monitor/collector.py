"""The collector: one attachment of a monitor, from beginning to end."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from itertools import count
from typing import Any

from probe.core.backend.protocols import FrameworkAdapter
from probe.core.control.planner import Configuration, Planner
from probe.core.faults import Faults
from probe.core.instrumentation.context import Run
from probe.core.instrumentation.plan import Plan
from probe.core.instrumentation.schedule import Schedule
from probe.core.instrumentation.session import Session
from probe.core.instrumentation.signals import collectives
from probe.core.instrumentation.step_boundary import StepConsumer
from probe.core.monitor.attach_checks import warnings_for
from probe.core.monitor.process_exit import Endings, put_back
from probe.core.monitor.subject import Subject
from probe.core.output.pipeline import SnapshotListener
from probe.core.output.run_output import FLUSH_SECONDS, Output
from probe.core.output.text_files import StructureOutput

_runs = count()
"""Number of attachments in this process; the same on ranks that train together."""


UNSTEPPED = (
    "no training step was seen: the optimizer passed to set_monitor has taken none; pass the one that trains, after it "
    "is wrapped"
)
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
        listening, self._listening = self._listening, None
        if self._dropped is not None:
            self._dropped.detach()
        if listening is not None:
            listening.stop()


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
        listeners: Iterable[SnapshotListener] = (),
    ) -> None:
        self._listeners = listeners
        self._subject, self._collectives, self._process_group = subject, collectives, process_group
        self.faults, self.number = subject.faults, next(_runs)
        self.output: Output | None = None
        self._first = subject.attachment.start_iteration
        self._ended_at: int | None = None
        with ExitStack() as undo:
            self.run = subject.run(Plan(configuration.settings, Schedule()), self._first)
            self._planner = Planner(configuration, subject.framework, self.number, self._first, self.faults)
            undo.callback(self._planner.close)
            plan = self._planner.plan
            ranks = subject.framework.groups.world_size()
            self._planner.warn(warnings_for(configuration.settings, ranks, os.environ))
            if plan.takes_part and not plan.settings.print_struct:
                self.output = self._new_output(self.run, plan, self._first)
                undo.callback(self.output.discard)
            consumer = StructureOutput(self.faults) if plan.purpose == "structure" else self.output
            session = Session(self.run, plan.schedule, self._first, consumer, self._between)
            undo.callback(session.detach)
            session.attach(plan.sources)
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
        self._endings = Endings(self._end_quietly, self.flush)
        if not self._planner.dynamic:
            session.retire(lambda: self._end_quietly(False))

    @property
    def collecting(self) -> bool:
        """True if further rows will be collected."""
        return self.session is not None and self._planner.collecting

    @property
    def step(self) -> int:
        """Number of the training step in progress, or of the one in which the collector ended."""
        return self.run.clock.step if self._ended_at is None else self._ended_at

    def flush(self, timeout: float = FLUSH_SECONDS) -> bool:
        """Wait until every finished step is written; return False if that takes longer than ``timeout`` seconds."""
        return self.output.flush(timeout) if self.output is not None else True

    def obey_program(self) -> None:
        """Apply assigned values at once if nothing of the step in progress has been collected, else with the next."""
        if self.session is not None:
            self.session.at_once(self._of_program)

    # Plans.

    def _between(self, step: int) -> None:
        """Apply every plan that takes effect with ``step``, which is about to begin."""
        if self.session is not None:
            for plan in self._planner.plans(step, None if self.output is None else self.output.news):
                self._apply(plan, step)

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
        self._planner.accept(plan)
        if plan.restarts or not plan.listens:
            self._collectives.stop()
        self.run = run
        consumer: StepConsumer | None = self.output if plan.writes or plan.purpose == "rest" else None
        if plan.purpose == "structure":
            consumer = StructureOutput(self.faults)
        self.session.change(run, plan.schedule, consumer, plan.sources)
        if plan.listens:
            self._collectives.attach(run, plan.takes_part)

    def _new_output(self, run: Run, plan: Plan, first: int) -> Output:
        follows, pace = self._planner.follows, plan.schedule.pace
        return Output(run, self.number, self._process_group, first, pace, follows, self._listeners)

    # The end.

    def end(self, partial: bool) -> None:
        """Remove every hook, write all pending steps and close the files. A further call does nothing.

        Args:
            partial: whether training ends by an exception: then the unfinished step is written, too.
        """
        session, self.session = self.session, None
        if session is None:
            self._collectives.stop()
            self.flush()  # a signal may come while the first call still waits for the files
            put_back()
            if self._leaving is not None:
                self._try(self._detach, self._leaving)
            return
        self._ended_at = self.run.clock.step
        if not partial and self._ended_at == self._first:
            _log.warning(UNSTEPPED)
        with ExitStack() as ending:  # each runs even if others fail
            if self.output is not None:
                ending.callback(self._try, self.output.close, partial)
            ending.callback(self._try, self._endings.forget)
            ending.callback(self._try, self._planner.close)
            ending.callback(self._try, self._collectives.stop)
            ending.callback(self._try, self._detach, session)
            if partial:
                self._try(session.flush_partial)

    def _detach(self, session: Session) -> None:
        self._leaving = session
        if session.detach():
            self._leaving = None

    def _try(self, function: Callable[..., object], *args: object) -> None:
        """Call ``function``, and count an error: training goes on, or the process ends for another reason."""
        try:
            function(*args)
        except Exception as error:  # noqa: BLE001
            self.faults.note("end of the run", error)

    def _end_quietly(self, partial: bool) -> None:
        self._try(self.end, partial)

    def __del__(self) -> None:
        """End a run whose model, optimizer and monitor are dropped without ``stop()``; they keep each other alive. Wait
        for nothing, since this may run on any thread, even the delivery thread."""
        session, output = getattr(self, "session", None), self.output
        if session is None or (output is not None and not output.delivers):
            return
        self.session = None
        with ExitStack() as ending:
            if output is not None:
                ending.callback(self._try, output.let_go)
            ending.callback(self._try, self._endings.forget)
            ending.callback(self._try, self._planner.close)
            ending.callback(self._try, self._collectives.stop)
            ending.callback(self._try, session.detach, True)
