"""The training steps of a session: their updates, their time, the hand-over of sampled ones. It alone counts steps."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection
from typing import Protocol

from probe.core.backend.protocols import Module, Optimizer, Tensor
from probe.core.door import attempt, count
from probe.core.faults import Faults
from probe.core.instrumentation.context import Run
from probe.core.instrumentation.other_updates import OtherUpdates
from probe.core.instrumentation.recorder import Pending, Recorder
from probe.core.instrumentation.schedule import Schedule
from probe.core.instrumentation.step_boundary import (
    EndedUpdate,
    FinishedStep,
    RunListener,
    StepBoundary,
    StepConsumer,
    UpdateListener,
)
from probe.core.instrumentation.watched_parts import WatchedParts
from probe.core.records import Outcome

UNPLACED = "hooks: steps that were due to be sampled, but began within a backward, where none can be placed"
"""Kind of loss that is counted for a step that cannot be sampled."""
Between = Callable[[int], None]
"""Function that is called between two steps with the number of the next one."""


class HookOwner(Protocol):
    """Owner of the hooks: the session."""

    def hook(self, optimizer: Optimizer) -> None:
        """Place the hooks of an optimizer that has replaced another, unless it has them."""

    def unhook(self, optimizer: Optimizer) -> None:
        """Remove the hooks of an optimizer, and let go of it."""

    def leave(self) -> None:
        """Remove hooks that have stayed in place beyond the end of the session."""

    def finished(self) -> None:
        """Receive the end of each step once no further step will be sampled."""


class TrainingSteps:
    """The steps of a session, from each update of its optimizers to the next; see
    :class:`probe.core.backend.protocols.StepListener`.

    Args:
        run: the things to watch; its clock and recorder belong to this object from now on.
        output: receives every sampled step on its thread; None if this rank takes no part.
        between: called between steps; may change the run.
    """

    def __init__(
        self,
        run: Run,
        schedule: Schedule,
        start: int,
        output: StepConsumer | None,
        between: Between | None,
        owner: HookOwner,
    ) -> None:
        self._hooks, self._owner = run.framework.hooks, owner
        self.other_updates = OtherUpdates(run, self.succeed, self.follow, self.suspend, self._ended_unseen)
        """Updates that the hooks of the watched optimizers do not see."""
        self.take(run, schedule, output)
        self._between = between
        self.settled = False
        """True if ``between`` need not be called: nothing can change what is collected."""
        self.run_listener: RunListener | None = None
        """Receives every step."""
        self.update_listener: UpdateListener | None = None
        """Receives every update."""
        self.boundary = StepBoundary(run.framework.tensors, run.optimizers, self._hooks.graph_size)
        self.listens = False
        """True if hooks show when a forward begins, in sampled steps."""
        self._succeeded_at = start
        """Number of the latest step in which an optimizer that was made anew has taken the place of one like it."""
        self._process = os.getpid()
        self.thread = threading.current_thread()
        """The thread on which the latest forward or update began."""
        self.over = False
        """True once the hooks have no effect."""
        self.working = False
        """True while an optimizer's hook runs."""
        self.last: tuple[int, Pending, tuple[str, ...]] | None = None
        """Number, moments and ops of the step that ended last, if it was sampled."""
        run.clock.begin(start, schedule.samples(start))

    def take(self, run: Run, schedule: Schedule, output: StepConsumer | None) -> None:
        """Begin watching ``run``. Call between steps."""
        self.run, self._schedule, self.output = run, schedule, output
        self.other_updates.watch(run)
        self.parts = WatchedParts(run)

    def end(self) -> None:
        """Take no further step: from now on the hooks have no effect. Count compiled updates so far."""
        if not self.over:
            attempt(self.faults, "compiled update", self.other_updates.find_compiled)
        self.over = self.other_updates.over = True
        self.run.clock.sampled = False

    def unsettle(self) -> None:
        """Call ``between`` at the next boundary between two steps. Callable on any thread."""
        self.settled = False

    @property
    def waits(self) -> bool:
        """True if the output may still wait for other ranks, for whose numbers an end would have to wait, too."""
        return self.output is not None and self.output.waits_for_ranks

    def at_once(self, act: Callable[[int], None]) -> None:
        """Call ``act``, which may change the run, with the number of the step in progress, if nothing of that step has
        been collected: between an update and the next forward."""
        attempt(self.faults, "control", self._at_once, act)

    def _at_once(self, act: Callable[[int], None]) -> None:
        run = self.run
        if self.over or (run.clock.sampled and (self.parts.looked or run.seen)):
            return
        step = run.clock.step
        attempt(self.faults, "control", act, step)
        self._begin(step)

    # Called by hooks.

    def forward_listener(self, model: Module) -> Callable[..., None]:
        """Return a function to call when a forward of ``model`` begins in a sampled step: it looks for parameters."""

        def began(*_: object) -> None:
            if self._hooks.forward_kind(model) is None:
                return
            self.thread = threading.current_thread()
            self.boundary.forward_noted = True
            if self.run.clock.micro_step > self.other_updates.limit:
                self.other_updates.give_up()
            self.parts.look()

        return began

    def before(self, optimizer: Optimizer, scale: Tensor | None) -> None:
        """Note that the update of ``optimizer`` begins: gradients are as they will be applied."""
        self.thread = threading.current_thread()
        if self.over:  # or a wrapper holds the hook, so that it could not be removed
            attempt(self.faults, "end of the run", self._owner.leave)
            return
        self.other_updates.updating = True
        before, self.working = self.working, True
        try:
            self._before(optimizer, scale)
        except Exception as error:  # noqa: BLE001 - training goes on after any error
            count(self.run.faults, "before the update", error)
        finally:
            self.working = before

    def _before(self, optimizer: Optimizer, scale: Tensor | None) -> None:
        if not self._watches(optimizer):
            attempt(self.faults, "optimizer", self._come_back, optimizer)
            if not self._watches(optimizer):
                return
        if self.boundary.updated and self.boundary.ends_by(optimizer):
            self._end()
            self.run.clock.forward_was_before = True
        if self.run_listener is not None:
            attempt(self.faults, "run state", self.run_listener.updating, optimizer)
        run = self.run
        if self.update_listener is not None and not (run.capturing is not None and run.captured()):
            attempt(self.faults, "sentinel", self.update_listener.updating, optimizer, scale)
        for every in run.every_update.all:
            attempt(self.faults, "collectives", every, run.clock.step)
        if run.clock.sampled and not (run.capturing is not None and run.captured()):
            self._read(run, optimizer, scale)

    def _read(self, run: Run, optimizer: Optimizer, scale: Tensor | None) -> None:
        """Call the listeners of a sampled step before the update of ``optimizer``."""
        begun = time.perf_counter() if run.cost.clock is None else run.cost.begin()
        try:
            if self.boundary.rate is None:
                rate = self._hooks.learning_rate(optimizer)
                if type(rate) is float:
                    self.boundary.rate = rate
                else:
                    self.boundary.note_rate(rate)
        except Exception as error:  # noqa: BLE001 - training goes on after any error
            count(run.faults, "learning rate", error)
        owned = self.parts.updated_by(optimizer)
        for listen in run.before_update.all:
            try:
                listen(optimizer, owned, scale)
            except Exception as error:  # noqa: BLE001 - the other listeners are still called
                count(run.faults, "before the update", error)
        if len(run.optimizers) > 1:
            run.clock.updated.update(id(parameter.thing) for parameter in owned)
        run.cost.end(begun)

    def after(self, optimizer: Optimizer, outcome: Outcome) -> None:
        """Note that the update has ended, applied or skipped; end the step if every optimizer has updated."""
        if self.over:
            return
        self.other_updates.updates, self.other_updates.updating = self.other_updates.updates + 1, False
        if self.other_updates.compiled:
            self.other_updates.seen(optimizer)
        if not self._watches(optimizer):
            return
        before, self.working = self.working, True
        searches = self.boundary.any_searched and self.boundary.searches(optimizer)
        try:
            if self.update_listener is not None:
                attempt(self.faults, "sentinel", self.update_listener.updated, optimizer, outcome, searches)
            if self.run.clock.sampled and self.run.after_update.all:
                attempt(self.faults, "after the update", self._after, optimizer, outcome)
            if outcome != "applied" or searches:
                self._take_outcome(optimizer, "unknown" if outcome == "applied" else outcome)
            if self.boundary.take(optimizer):
                self._end()
        finally:
            self.working = before

    def _take_outcome(self, optimizer: Optimizer, outcome: Outcome) -> None:
        """Note an update that was skipped, or perhaps: in a sampled step with the number on a device that shows it."""
        found_inf = None
        if outcome == "unknown" and self.run.clock.sampled:
            found_inf = attempt(self.faults, "outcome", self._hooks.found_inf, optimizer)
        self.boundary.note_outcome(outcome, found_inf)

    def _after(self, optimizer: Optimizer, outcome: Outcome) -> None:
        run = self.run
        if run.capturing is not None and run.captured():
            return
        begun, run.clock.outcome = run.cost.begin(), outcome
        owned = self.parts.of(optimizer)
        for listen in run.after_update.all:
            attempt(self.faults, "after the update", listen, optimizer, owned)
        run.cost.end(begun)

    def succeed(self, number: int, optimizer: Optimizer) -> None:
        """Put ``optimizer``, which is about to update, in the place of the watched one like it with this number, and
        let go of that one, as the program may have. Where each update has another, the manifest names the first."""
        before, step = self.run.optimizers[number], self.run.clock.step
        self._owner.hook(optimizer)
        self._exchange(number, optimizer)
        self._owner.unhook(before)
        if self.update_listener is not None:
            self.update_listener.succeeded(before, optimizer)
        if self.output is not None and step > self._succeeded_at + 1:
            self.output.succeed(self.run)
        self._succeeded_at = step

    def follow(self, number: int, optimizer: Optimizer) -> None:
        """Put ``optimizer``, whose update has just ended a step, in the place of the watched one with this number."""
        self._owner.hook(optimizer)
        self._exchange(number, optimizer)
        if self.output is not None:
            self.output.succeed(self.run)
        self.after(optimizer, "applied")

    def _come_back(self, optimizer: Optimizer) -> None:
        """Restore an optimizer that another has replaced, since it is about to update."""
        parameters = {id(parameter) for parameter in self._hooks.owned(optimizer)}
        shared = [len(parameters & {id(p) for p in self._hooks.owned(watched)}) for watched in self.run.optimizers]
        if any(shared):
            self._exchange(shared.index(max(shared)), optimizer)

    def release(self, identities: Collection[int]) -> None:
        """Watch the optimizers with these identities no more. Call between steps, before :meth:`change`."""
        self.run.adopt([optimizer for optimizer in self.run.optimizers if id(optimizer) not in identities])

    def _watches(self, optimizer: Optimizer) -> bool:
        for watched in self.run.optimizers:  # noqa: SIM110 - in each step; a generator takes longer
            if watched is optimizer:
                return True
        return False

    def _exchange(self, number: int, optimizer: Optimizer) -> None:
        optimizers = [*self.run.optimizers]
        before, optimizers[number] = optimizers[number], optimizer
        self.run.adopt(optimizers)
        self.boundary.hand_over(before, optimizer)
        self.parts.hand_over(before)

    def suspend(self) -> None:
        """Stop collecting in the step in progress, and drop its rows."""
        if self.run.clock.sampled:
            self.run.clock.sampled = False
            self._drop()

    def compiled(self, optimizer: Optimizer, updates: Callable[[], int]) -> None:
        """Count the steps of an optimizer whose update is compiled by looking for its updates in each hook. Called
        while the compiler traces: first before any compiled update, later also after parts of one."""
        if not self.over:
            attempt(self.faults, "compiled update", self.other_updates.add_compiled, optimizer, updates)

    def _ended_unseen(self, optimizer: Optimizer) -> None:
        """Note a compiled update, which ends its step."""
        self.boundary.note_outcome("unknown")
        if self.update_listener is not None:
            attempt(self.faults, "sentinel", self.update_listener.unseen, optimizer)
        if self._watches(optimizer) and self.boundary.take(optimizer):
            self._end()

    def searching(self, on: bool) -> None:
        """Note that a closure is evaluated again within an update, from ``True`` until ``False``."""
        self.run.clock.searching = on and not self.over
        if on:
            self.boundary.evaluated()

    @property
    def faults(self) -> Faults:
        """The counter of failures."""
        return self.run.faults

    @property
    def sampled(self) -> bool:
        """True if the step in progress is sampled."""
        return self.run.clock.sampled

    @property
    def reads_gradients(self) -> bool:
        """True if gradients are read in the step in progress, sampled or not."""
        return self.update_listener is not None or self.run.clock.sampled

    def gradients_now(self, into: Recorder) -> None:
        """Record the present gradients of the optimizers that have not updated in this step."""
        for optimizer in self.run.optimizers:
            if id(optimizer) not in self.boundary.updated:
                for record in self.run.gradients_now:
                    record(optimizer, self.parts.of(optimizer), self._hooks.held_scale(optimizer), into)

    def _end(self) -> None:
        """Hand a sampled step over and begin the next; a failure is counted."""
        faults = self.run.faults
        try:
            self._end_step()
        except Exception as error:  # noqa: BLE001 - training goes on after any error
            count(faults, "end of step", error)

    def _end_step(self) -> None:
        run, step = self.run, self.run.clock.step
        self.last, (outcome, update) = None, self.boundary.end()
        if self.run_listener is not None:
            attempt(self.faults, "run state", self._report, self.run_listener, step, outcome)
        sampled, hooks, handing = run.clock.sampled, run.cost.hooks, time.perf_counter()
        if sampled:
            self._finish(outcome, update)
        try:
            if sampled or self._schedule.pace is not None:
                self._schedule.ended(step, sampled)
            run.cost.step_ended(self._schedule.pace, sampled, self.output is not None, hooks, handing)
            self.boundary.updated.clear()
            if run.clock.micro_step > self.other_updates.micro_steps:
                self.other_updates.step_ended(run.clock.micro_step)
            self.parts.looked = False
            if self._between is not None and not self.settled:
                run.clock.begin(step + 1, False)
                attempt(self.faults, "control", self._between, step + 1)
        finally:  # the configuration may stop training, and a program may catch that and go on
            self._begin(step + 1)
            try:
                self.boundary.await_forward(self.run.clock.sampled and self.listens)
            except Exception as error:  # noqa: BLE001 - training goes on after any error
                count(run.faults, "forwards", error)
            self.run.cost.step_begun()
        if self._schedule.finished:
            self._owner.finished()

    def _report(self, listener: RunListener, step: int, outcome: Outcome) -> None:
        run = self.run
        waits = [wait() for wait in run.waited] if run.clock.sampled else []
        seconds = [wait for wait in waits if wait is not None]
        listener.ended(step, outcome, sum(seconds) if seconds else None)

    def _finish(self, outcome: Outcome, update: EndedUpdate) -> None:
        """Hand the step over, or drop it if nothing can be read; a failure is counted."""
        run, captured = self.run, self.run.capturing is not None
        try:
            try:
                captured = captured and run.captured()
            finally:
                if captured:
                    self._drop()
            if not captured:
                self._hand_over(outcome, update)
        except Exception as error:  # noqa: BLE001 - the next step begins
            count(run.faults, "end of step", error)

    def _begin(self, step: int) -> None:
        """Begin ``step``, with the hooks that it needs: they rest if neither it nor the next one is sampled."""
        sampled, run = self._samples(step), self.run
        if sampled == run.resting and (sampled or not (self.over or self._samples(step + 1))):
            run.cost.note_rest(attempt(self.faults, "hooks", run.move_hooks) or 0.0)
        if sampled and run.resting:
            sampled = False
            run.faults.lost(UNPLACED, 1)
        run.clock.begin(step, sampled)

    def _samples(self, step: int) -> bool:
        """True if ``step`` is to be sampled; never in a forked child, which has no delivery thread."""
        return not self.over and self._schedule.samples(step) and os.getpid() == self._process

    def end_updated(self) -> None:
        """End the step in progress if it was updated, and other optimizers were expected to update."""
        if self.boundary.updated and not self.working:
            self._end()

    def flush_partial(self) -> None:
        """Deliver the rows of a step that will not end."""
        run = self.run
        if run.clock.sampled and run.seen:
            attempt(self.faults, "end of step", self._hand_over, "partial", self.boundary.end()[1])

    def _hand_over(self, outcome: Outcome, update: EndedUpdate) -> None:
        run = self.run
        begun = time.perf_counter() if run.cost.clock is None else run.cost.begin()
        step, now = run.clock.step, time.time()
        try:
            pending = run.recorder.drain()
            others = [collector.drain() for collector in run.collectors.all]
        except BaseException:
            self._drop()
            raise
        self._drop(drained=True)
        self.last = (step, pending, run.statistics)
        spent = run.cost.take(begun)
        if self.output is not None:
            self.output.submit(FinishedStep(step, now, (pending, *others), run.statistics, spent, outcome, update))

    def _drop(self, drained: bool = False) -> None:
        """Drop the rest of the step; pass files that listeners return to the output."""
        for listen in self.run.step_ended.all:
            try:
                file = listen()
                if file is not None and self.output is not None:
                    self.output.write(file)
            except Exception as error:  # noqa: BLE001 - the other listeners are still called
                count(self.run.faults, "end of step", error)
        self.run.clock.updated.clear()
        if not drained:
            self.run.recorder.clear()
