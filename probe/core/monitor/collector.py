"""The collector: an attachment of a monitor while plans change what it collects."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Any

from probe.core.control.armed_collection import ArmedCollection
from probe.core.control.command_requests import Command
from probe.core.control.planner import Configuration
from probe.core.instrumentation.context import Listeners
from probe.core.instrumentation.plan import Plan
from probe.core.instrumentation.signals.collectives import Listening
from probe.core.instrumentation.step_boundary import StepConsumer
from probe.core.monitor.attachment import Attachment
from probe.core.monitor.subject import Subject
from probe.core.output.pipeline import SnapshotListener
from probe.core.output.run_output import StructureOutput
from probe.core.run_state.rules.threshold import limits_of

JUDGEMENT_SECONDS = 0.1
"""Longest wait for the judgement of a step with a loss that is not finite."""


class Collector:
    """An attachment, and all plans that are applied to it, each at a step boundary. Arguments are those of
    :class:`Attachment`."""

    def __init__(
        self,
        configuration: Configuration,
        subject: Subject,
        listening: Listening,
        process_group: Any,
        listeners: Listeners[SnapshotListener],
    ) -> None:
        self._subject, self._listening, self._began = subject, listening, time.time()
        self._narrowed: Subject | None = None
        """Subject from the next step on."""
        self.attachment = Attachment(configuration, subject, listening, process_group, self._between, listeners)
        self._planner = self.attachment.planner

    @property
    def collecting(self) -> bool:
        """True if further rows will be collected."""
        return self.attachment.session is not None and self._planner.collecting

    def obey_program(self) -> None:
        """Apply assigned values at once if nothing of the step in progress has been collected, else with the next."""
        if (session := self.attachment.session) is not None:
            session.steps.unsettle()
            session.steps.at_once(self._apply_assigned)

    def commands(self, accepts: Collection[type[Command]]) -> list[Command]:
        """Return the commands that take effect before the step that is about to begin."""
        attachment = self.attachment
        if attachment.session is None:
            return []
        return self._planner.commands(attachment.run.clock.step, accepts, attachment.first, self._began)

    def narrow(self, models: Sequence[Any], optimizers: Sequence[Any]) -> None:
        """Watch these alone of the present models and optimizers, from the next step on."""
        self._narrowed = self._subject.narrowed(models, optimizers)
        if (session := self.attachment.session) is not None:
            session.steps.unsettle()

    def _between(self, step: int) -> None:
        """Apply every plan that takes effect with ``step``, which is about to begin."""
        if (session := self.attachment.session) is None:
            return
        session.steps.settled = True  # first: the program may assign values meanwhile, on another thread
        try:
            self._apply_plans(step)
        finally:
            if not self._planner.settled:
                session.steps.unsettle()

    def _apply_plans(self, step: int) -> None:
        attachment = self.attachment
        if self._narrowed is not None:
            self._apply_narrowed(self._narrowed, step)
        if self._planner.armed is not None:
            self._count_incident(self._planner.armed)
        if attachment.session is not None:
            news = None if attachment.output is None else attachment.output.news
            for plan in self._planner.plans(step, news, self._account):
                if plan.origin == "sentinel":
                    self._apply_deeper(plan, step)
                else:
                    self._apply(plan, step)

    def _apply_narrowed(self, narrowed: Subject, step: int) -> None:
        before, self._subject, self._narrowed = self._subject, narrowed, None
        remaining = {id(optimizer) for optimizer in narrowed.optimizers}
        if (session := self.attachment.session) is not None:
            session.steps.release({id(optimizer) for optimizer in before.optimizers} - remaining)
            self._apply(self._planner.plan, step)

    def _count_incident(self, armed: ArmedCollection) -> None:
        """Count what the step that has ended has cost, if everything is collected; wait for the judgement of one with a
        loss that is not finite."""
        if armed.active and (session := self.attachment.session) is not None:
            last = session.steps.last
            armed.spend(self._account(), last[1].size if last is not None else 0)
        if armed.suspicious():
            self.attachment.numbers.process(JUDGEMENT_SECONDS)

    def _account(self) -> float:
        """Return the seconds that the monitor has taken so far, on all threads and on the device."""
        return self.attachment.run.cost.total

    def _apply_deeper(self, plan: Plan, step: int) -> None:
        """Apply the plan of an incident; where that is impossible, go on as configured."""
        try:
            self._apply(plan, step)
        except Exception as error:  # noqa: BLE001 - what is configured is still collected
            if not isinstance(error, ValueError):  # the refusal of a model
                self.attachment.faults.note("collection around an incident", error)
            if self._planner.armed is not None:
                self._planner.armed.refuse((), " ".join(str(error).split()))
            if self._planner.plan is plan and plan.base is not None:
                self._apply(plan.base, step)

    def _apply_assigned(self, step: int) -> None:
        for plan in self._planner.of_program(self.attachment.output is not None):
            self._apply(plan, step)

    def _apply(self, plan: Plan, step: int) -> None:
        """Apply ``plan`` from ``step`` on; if that is impossible, raise an error and change nothing."""
        attachment = self.attachment
        if (session := attachment.session) is None:
            return
        output = attachment.output
        run = self._subject.run(plan, step, None if output is None else output.directory)
        if plan.origin == "configuration" and plan.purpose != "rest":
            self._subject.check(plan, run, self._planner.lead)
        if output is not None:
            output.follow(run, plan)
        elif plan.writes:  # module_ranks has changed
            attachment.output = output = attachment.new_output(run, plan, step)
            output.begin(plan)
        self._planner.accept(plan)
        if plan.restarts or not plan.listens:
            self._listening.stop()
        attachment.run = run
        if limits_of(run.settings.alert.rules):
            attachment.listening_numbers()
        attachment.numbers.limit(run.settings.alert)
        consumer: StepConsumer | None = output if plan.writes or plan.purpose == "rest" else None
        if plan.purpose == "structure":
            consumer = StructureOutput(attachment.faults)
        session.change(run, plan.schedule, consumer, plan.sources)
        if plan.listens:
            self._listening.attach(run, plan.takes_part)
