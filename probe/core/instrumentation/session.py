"""The session: attaches, counts steps, delivers, detaches. It alone owns the step counter and every hook."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from functools import partial

from probe.core.backend.protocols import Module, Optimizer, Remove, Tensor, unheard
from probe.core.door import attempt, count
from probe.core.faults import Faults
from probe.core.instrumentation.compiled_updates import CompiledUpdates
from probe.core.instrumentation.context import Run
from probe.core.instrumentation.idle_hooks import UNPLACED
from probe.core.instrumentation.parameters import Parameters
from probe.core.instrumentation.recorder import Pending, Recorder
from probe.core.instrumentation.retirement import Retirement
from probe.core.instrumentation.schedule import Schedule
from probe.core.instrumentation.signals.sources import Source
from probe.core.instrumentation.step_boundary import (
    FinishedStep,
    ForwardMarks,
    RunListener,
    Searches,
    StepConsumer,
    StepTimer,
    Turns,
    UpdateListener,
    UpdateReading,
    Updates,
)
from probe.core.instrumentation.succession import Succession
from probe.core.records import Outcome

Between = Callable[[int], None]


class Session:
    """One monitored run between attaching and detaching.

    Args:
        run: the things to watch; its clock and recorder belong to this session from now on.
        output: receives every sampled step on its thread; None if this rank takes no part.
        between: called between steps with the number of the next one; may call :meth:`change`.
    """

    def __init__(
        self, run: Run, schedule: Schedule, start: int, output: StepConsumer | None, between: Between | None = None
    ) -> None:
        self._hooks = run.framework.hooks
        self._sources = ExitStack()
        """All hooks except those that count steps."""
        self._compiled_updates = CompiledUpdates(self._ended_unseen)
        self._take(run, schedule, output)
        self._between = between
        self.settled = False
        """True if ``between`` need not be called: nothing can change what is collected."""
        self._run_state: RunListener | None = None
        self._sentinel: UpdateListener | None = None
        self._turns = Turns(run.optimizers)
        self.forwards = ForwardMarks(self._hooks.graph_size)
        self._listens = False
        """True if hooks show when a forward begins, in sampled steps."""
        self._succession = Succession(run, self.follow, self.suspend)
        self._hooked = [*run.optimizers]
        """The optimizers with hooks: the watched ones, and those that another has replaced."""
        self._timer = StepTimer()
        self._updates, self._searches = Updates(run.framework.tensors), Searches()
        self._update = UpdateReading()
        """The update of the step that ended last."""
        self._process = os.getpid()
        self._thread = threading.current_thread()
        """The thread on which the latest forward or update began."""
        self._stack = ExitStack()
        self._retirement = Retirement(self._hooks, self._waits)
        self._detached = False
        """True once the hooks have no effect."""
        self._working = False
        """True while an optimizer's hook runs."""
        self._leaving = False
        """True once all hooks are to be removed at the next forward."""
        self.last: tuple[int, Pending, tuple[str, ...]] | None = None
        """Number, moments and ops of the step that ended last, if it was sampled."""
        run.clock.begin(start, schedule.samples(start))

    def _take(self, run: Run, schedule: Schedule, output: StepConsumer | None) -> None:
        """Begin watching ``run``."""
        self._run, self._schedule, self._output = run, schedule, output
        self._compiled_updates.look_in(run)
        self._parameters = Parameters(run)

    def change(self, run: Run, schedule: Schedule, output: StepConsumer | None, sources: Sequence[Source]) -> None:
        """Watch ``run`` instead, which has the same model and optimizers, from the next step on. Call between steps.

        Raises:
            Exception: if a hook cannot be placed; then none is.
        """
        if self._detached:  # by a signal handler or another thread, since the step ended
            return
        clock = self._run.clock
        run.adopt(self._run.optimizers)
        self._sources.close()
        self._take(run, schedule, output)
        self._succession.run = run
        run.clock.begin(clock.step, False)
        self._place(sources)

    def at_once(self, act: Callable[[int], None]) -> None:
        """Call ``act``, which may :meth:`change` the run, with the number of the step in progress, if nothing of that
        step has been collected: between an update and the next forward."""
        attempt(self.faults, "control", self._at_once, act)

    def _at_once(self, act: Callable[[int], None]) -> None:
        run = self._run
        if self._detached or (run.clock.sampled and (self._parameters.looked or run.seen)):
            return
        step = run.clock.step
        attempt(self.faults, "control", act, step)
        self._begin(step)

    def _place(self, sources: Sequence[Source]) -> None:
        """Place the hooks of ``sources`` and those of parameters; if one fails, remove all."""
        try:
            self._sources.callback(self._parameters.unhook)
            self._listens = bool(sources)
            for source in sources:
                self._sources.enter_context(source(self._run))
            self._parameters.find()
            for _, model in self._run.chunks if sources else ():
                began, guard = partial(self._forward_began, model), partial(self._run.guard, "parameters")
                hook = self._hooks.on_forward(model, began, unheard, guard)
                self._sources.callback(self._run.idle.keep(hook))
        except BaseException:
            self._sources.close()
            raise

    def _forward_began(self, model: Module, *_: object) -> None:
        """Look for new parameters at the first forward of a sampled step."""
        if self._hooks.forward_kind(model) is None:
            return
        self._thread = threading.current_thread()
        self.forwards.noted = True
        if self._run.clock.micro_step > self._succession.limit:
            self._succession.give_up()
        self._parameters.look()

    def attach(self, sources: Sequence[Source]) -> None:
        """Place every hook; if one cannot be placed, remove all and raise the error."""
        try:
            self._stack.callback(self._run.framework.prepare(self._run.settings))
            self._stack.callback(self._sources.close)
            self._place(sources)
            for optimizer in self._run.optimizers:
                self._stack.callback(self._hooks.on_step(optimizer, self))
            self._stack.callback(self._run.framework.on_every_step(*self._succession.listeners(), self.faults))
            self.forwards.step_ended(self._run.clock.sampled and self._listens)
        except BaseException:
            self._rest()
            self._stack.close()
            raise

    def detach(self, at_once: bool = False) -> bool:
        """Remove every hook: afterwards model, optimizer and framework are as before attaching.

        While a framework calls its hooks, or if another thread trains, they stay in place without effect until the
        first forward after the next update, or until the next call of this method.

        Args:
            at_once: whether nothing can be training, since model and optimizers are no longer referenced.

        Returns:
            True if the hooks are removed.
        """
        if self._compiled_updates and not self._detached:
            attempt(self.faults, "compiled update", self._compiled_updates.find, self._run)
        self._rest()
        at_once |= self._retirement.under_way
        if not at_once and (self._working or self._trains_elsewhere() or self._hooks.at_work()):
            return False
        self._stack.close()
        self._run.idle.remove()
        return True

    def _trains_elsewhere(self) -> bool:
        """True if another thread trains and has not ended."""
        return self._thread is not threading.current_thread() and self._thread.is_alive()

    def _rest(self) -> None:
        self._detached = self._succession.over = True
        self._run.clock.sampled = False

    def _leave(self) -> None:
        """Remove the hooks at the next forward: now an optimizer calls its hooks before an update."""
        if not self._leaving:
            self._leaving = True
            _, model = self._run.chunks[0]
            close = partial(attempt, self.faults, "end of the run", self._stack.close)
            self._stack.callback(self._hooks.at_next_forward(model, close, self.faults))

    def retire(self, remove: Callable[[], None]) -> None:
        """Call ``remove`` at a forward once the schedule has ended and no step waits for other ranks: the end would
        have to wait, too."""
        self._retirement.remove = remove

    def _waits(self) -> bool:
        return self._detached or (self._output is not None and self._output.waits_for_ranks)

    def count_only(self) -> None:
        """Remove every hook except those that count steps. Call where hooks can be removed."""
        self._output = None
        self._sources.close()
        self._listens = False
        self._retirement.disarm()

    def remove_at_end(self, remove: Remove) -> None:
        """Call ``remove`` when the session detaches."""
        self._stack.callback(remove)

    def inform(self, listener: RunListener) -> None:
        """Call ``listener`` at every step from now on."""
        self._run_state = listener

    def show_updates(self, listener: UpdateListener) -> None:
        """Call ``listener`` at every update from now on."""
        self._sentinel = listener

    @property
    def run(self) -> Run:
        """The run in progress."""
        return self._run

    @property
    def parameters(self) -> Parameters:
        """The parameters of the run."""
        return self._parameters

    # Called by the optimizer's hooks.

    def before(self, optimizer: Optimizer, scale: Tensor | None) -> None:
        """Note that the update of ``optimizer`` begins: gradients are as they will be applied."""
        self._thread = threading.current_thread()
        if self._detached:  # or a wrapper holds the hook, so that it could not be removed
            attempt(self.faults, "end of the run", self._leave)
            return
        self._succession.updating = True
        before, self._working = self._working, True
        try:
            self._before(optimizer, scale)
        except Exception as error:  # noqa: BLE001 - training goes on after any error
            count(self._run.faults, "before the update", error)
        finally:
            self._working = before

    def _before(self, optimizer: Optimizer, scale: Tensor | None) -> None:
        if not self._watches(optimizer):
            attempt(self.faults, "optimizer", self._come_back, optimizer)
            if not self._watches(optimizer):
                return
        if self._turns.updated and self._turns.ends_by(optimizer):
            self._end()
        if self._run_state is not None:
            attempt(self.faults, "run state", self._run_state.updating, optimizer)
        run = self._run
        if self._sentinel is not None and not (run.capturing is not None and run.captured()):
            attempt(self.faults, "sentinel", self._sentinel.updating, optimizer, scale)
        for every in run.every_update.all:
            attempt(self.faults, "collectives", every, run.clock.step)
        if run.clock.sampled and not (run.capturing is not None and run.captured()):
            self._read(run, optimizer, scale)

    def _read(self, run: Run, optimizer: Optimizer, scale: Tensor | None) -> None:
        """Call the listeners of a sampled step before the update of ``optimizer``."""
        begun = time.perf_counter() if run.cost.clock is None else run.cost.begin()
        try:
            if self._updates.rate is None:
                rate = self._hooks.learning_rate(optimizer)
                if type(rate) is float:
                    self._updates.rate = rate
                else:
                    self._updates.updating(rate)
        except Exception as error:  # noqa: BLE001 - training goes on after any error
            count(run.faults, "learning rate", error)
        owned = self._parameters.updated_by(optimizer)
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
        if self._detached:
            return
        self._succession.updates, self._succession.updating = self._succession.updates + 1, False
        if not self._watches(optimizer):
            return
        before, self._working = self._working, True
        searches = self._searches.any_seen and self._searches.include(optimizer)
        try:
            if self._sentinel is not None:
                attempt(self.faults, "sentinel", self._sentinel.updated, optimizer, outcome, searches)
            if self._run.clock.sampled and self._run.after_update.all:
                attempt(self.faults, "after the update", self._after, optimizer, outcome)
            if outcome != "applied" or searches:
                self._take_outcome(optimizer, "unknown" if outcome == "applied" else outcome)
            if self._turns.take(optimizer):
                self._end()
        finally:
            self._working = before

    def _take_outcome(self, optimizer: Optimizer, outcome: Outcome) -> None:
        """Note an update that was skipped, or perhaps: in a sampled step with the number on a device that shows it."""
        known = outcome != "unknown" or not self._run.clock.sampled
        found = None if known else attempt(self.faults, "outcome", lambda: self._hooks.found_inf(optimizer))
        self._updates.take(outcome, found)

    def _after(self, optimizer: Optimizer, outcome: Outcome) -> None:
        run = self._run
        if run.capturing is not None and run.captured():
            return
        begun, run.clock.outcome = run.cost.begin(), outcome
        owned = self._parameters.of(optimizer)
        for listen in run.after_update.all:
            attempt(self.faults, "after the update", listen, optimizer, owned)
        run.cost.end(begun)

    def follow(self, number: int, optimizer: Optimizer) -> None:
        """Put ``optimizer``, whose update has just ended a step, in the place of the watched one with this number."""
        if not any(optimizer is known for known in self._hooked):
            self._hooks.check_optimizer(optimizer)
            self._stack.callback(self._hooks.on_step(optimizer, self))
            self._hooked.append(optimizer)
        self._exchange(number, optimizer)
        if self._output is not None:
            self._output.succeed(self._run)
        self.after(optimizer, "applied")

    def _come_back(self, optimizer: Optimizer) -> None:
        """Restore an optimizer that another has replaced, since it is about to update."""
        mine = {id(parameter) for parameter in self._hooks.owned(optimizer)}
        sharing = [len(mine & {id(p) for p in self._hooks.owned(each)}) for each in self._run.optimizers]
        if any(sharing):
            self._exchange(sharing.index(max(sharing)), optimizer)

    def release(self, identities: Collection[int]) -> None:
        """Watch the optimizers with these identities no more. Call between steps, before :meth:`change`."""
        self._run.adopt([each for each in self._run.optimizers if id(each) not in identities])

    def _watches(self, optimizer: Optimizer) -> bool:
        for watched in self._run.optimizers:  # noqa: SIM110 - in each step; a generator takes longer
            if watched is optimizer:
                return True
        return False

    def _exchange(self, number: int, optimizer: Optimizer) -> None:
        optimizers = [*self._run.optimizers]
        before, optimizers[number] = optimizers[number], optimizer
        self._run.adopt(optimizers)
        self._turns.hand_over(before, optimizer)
        self._parameters.hand_over(before)

    def suspend(self) -> None:
        """Stop collecting in the step in progress, and drop its rows."""
        if self._run.clock.sampled:
            self._run.clock.sampled = False
            self._drop()

    def compiled(self, optimizer: Optimizer, updates: Callable[[], int]) -> None:
        """Count the steps of an optimizer whose update is compiled by looking for its updates in each hook. Called
        while the compiler traces: first before any compiled update, later also after parts of one."""
        attempt(self.faults, "compiled update", self._compiled, optimizer, updates)

    def _compiled(self, optimizer: Optimizer, updates: Callable[[], int]) -> None:
        if not self._detached:
            self._compiled_updates.add(self._run, optimizer, updates)

    def _ended_unseen(self, optimizer: Optimizer) -> None:
        """Note a compiled update, which ends its step."""
        self._updates.take("unknown")
        if self._sentinel is not None:
            attempt(self.faults, "sentinel", self._sentinel.unseen, optimizer)
        if self._watches(optimizer) and self._turns.take(optimizer):
            self._end()

    def searching(self, on: bool) -> None:
        """Note that a closure is evaluated again within an update, from ``True`` until ``False``."""
        self._run.clock.searching = on and not self._detached
        if on:
            self._searches.evaluated()

    @property
    def faults(self) -> Faults:
        """The counter of failures."""
        return self._run.faults

    @property
    def sampled(self) -> bool:
        """True if the step in progress is sampled."""
        return self._run.clock.sampled

    @property
    def reads_gradients(self) -> bool:
        """True if gradients are read in the step in progress, sampled or not."""
        return self._sentinel is not None or self._run.clock.sampled

    def gradients_now(self, into: Recorder) -> None:
        """Record the present gradients of the optimizers that have not updated in this step."""
        for optimizer in self._run.optimizers:
            if id(optimizer) not in self._turns.updated:
                for record in self._run.gradients_now:
                    record(into, optimizer, self._parameters.of(optimizer), self._hooks.held_scale(optimizer))

    def _end(self) -> None:
        """Hand a sampled step over and begin the next; a failure is counted."""
        faults = self._run.faults
        try:
            self._end_step()
        except Exception as error:  # noqa: BLE001 - training goes on after any error
            count(faults, "end of step", error)

    def _end_step(self) -> None:
        run, step = self._run, self._run.clock.step
        self.last, self._update = None, self._updates.end()
        if self._run_state is not None:
            attempt(self.faults, "run state", self._tell, self._run_state, step)
        sampled, hooks, handing = run.clock.sampled, run.cost.hooks, time.perf_counter()
        if sampled:
            self._finish()
        try:
            if sampled or self._schedule.pace is not None:
                self._schedule.ended(step, sampled)
            self._timer.ended(self._output, self._schedule.pace, sampled, hooks, handing)
            self._turns.updated.clear()
            if run.clock.micro_step > self._succession.micro_steps:
                self._succession.step_ended(run.clock.micro_step)
            self._parameters.looked = False
            if self._between is not None and not self.settled:
                run.clock.begin(step + 1, False)
                attempt(self.faults, "control", self._between, step + 1)
        finally:  # the configuration may stop training, and a program may catch that and go on
            self._begin(step + 1)
            try:
                self.forwards.step_ended(self._run.clock.sampled and self._listens)
            except Exception as error:  # noqa: BLE001 - training goes on after any error
                count(run.faults, "forwards", error)
            self._timer.own = time.perf_counter() - self._timer.at
        if self._schedule.finished and self._retirement.remove is not None:
            self._stack.callback(self._retirement.arm(self._run.chunks[0][1], self.faults))

    def _tell(self, listener: RunListener, step: int) -> None:
        run = self._run
        known = [seconds for each in run.waited if (seconds := each()) is not None] if run.clock.sampled else []
        listener.ended(step, self._update.update.outcome, sum(known) if known else None)

    def _finish(self) -> None:
        """Hand the step over, or drop it if nothing can be read; a failure is counted."""
        run, captured = self._run, self._run.capturing is not None
        try:
            try:
                captured = captured and run.captured()
            finally:
                if captured:
                    self._drop()
            if not captured:
                self._hand_over(self._update)
        except Exception as error:  # noqa: BLE001 - the next step begins
            count(run.faults, "end of step", error)

    def _begin(self, step: int) -> None:
        """Begin ``step``, with the hooks that it needs: they rest if neither it nor the next one is sampled."""
        sampled, idle = self._samples(step), self._run.idle
        if sampled == idle.resting and (sampled or not (self._detached or self._samples(step + 1))):
            self._timer.rested += attempt(self.faults, "hooks", idle.move, self._hooks) or 0.0
        if sampled and idle.resting:
            sampled = False
            self._run.faults.lost(UNPLACED, 1)
        self._run.clock.begin(step, sampled)

    def _samples(self, step: int) -> bool:
        """True if ``step`` is to be sampled; never in a forked child, which has no delivery thread."""
        return not self._detached and self._schedule.samples(step) and os.getpid() == self._process

    def flush_partial(self) -> None:
        """Deliver the rows of a step that will not end."""
        run = self._run
        if run.clock.sampled and run.seen:
            attempt(self.faults, "end of step", self._hand_over, self._updates.end(), "partial")

    def _hand_over(self, update: UpdateReading, outcome: Outcome | None = None) -> None:
        run = self._run
        begun = time.perf_counter() if run.cost.clock is None else run.cost.begin()
        step, now = run.clock.step, time.time()
        try:
            pending = run.recorder.drain()
            beside = [each.drain() for each in run.collectors.all]
        except BaseException:
            self._drop()
            raise
        self._drop(drained=True)
        self.last = (step, pending, run.statistics)
        spent = run.cost.take(begun)
        if self._output is not None:
            rows, ended = (pending, *beside), outcome or update.update.outcome
            self._output.submit(FinishedStep(step, now, rows, run.statistics, spent, ended, update))

    def _drop(self, drained: bool = False) -> None:
        """Drop the rest of the step; pass files that listeners return to the output."""
        for listen in self._run.step_ended.all:
            try:
                file = listen()
                if file is not None and self._output is not None:
                    self._output.write(file)
            except Exception as error:  # noqa: BLE001 - the other listeners are still called
                count(self._run.faults, "end of step", error)
        self._run.clock.updated.clear()
        if not drained:
            self._run.recorder.clear()
