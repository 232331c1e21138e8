"""The session: the life of the hooks of one attachment. It alone owns every hook."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from probe.core.backend.protocols import Module, Optimizer, Remove, unheard
from probe.core.door import attempt
from probe.core.instrumentation.context import Run
from probe.core.instrumentation.schedule import Schedule
from probe.core.instrumentation.signals.sources import Source
from probe.core.instrumentation.step_boundary import StepConsumer
from probe.core.instrumentation.training_steps import Between, TrainingSteps

WHERE = "end of the run"
"""Place of failures at the end."""


class Session:
    """The hooks of one monitored run: placed, changed between steps, and removed at the end.

    Args:
        run: the things to watch; its clock and recorder belong to this session from now on.
        output: receives every sampled step on its thread; None if this rank takes no part.
        between: called between steps with the number of the next one; may call :meth:`change`.
    """

    def __init__(
        self, run: Run, schedule: Schedule, start: int, output: StepConsumer | None, between: Between | None = None
    ) -> None:
        self._hooks = run.framework.hooks
        self.steps = TrainingSteps(run, schedule, start, output, between, self)
        """The training steps, which the hooks call."""
        self._sources = ExitStack()
        """All hooks except those that count steps."""
        self._stack = ExitStack()
        """All hooks."""
        self._hooked: dict[int, tuple[Optimizer, Remove]] = {}
        """The optimizers with hooks, by identity: the watched ones, and those that one of another kind has replaced."""
        self._of_optimizers = ExitStack()
        """Removes these hooks."""
        self._leaving = False
        """True once all hooks are to be removed at the next forward."""
        self._end: Callable[[], None] | None = None
        """Function that ends the run once its schedule has ended; None if the run does not end by itself, or is to end
        at a forward already."""
        self._disarm: Remove = lambda: None
        """Removes the hook that ends the run."""
        self._ending = False
        """True while the function that ends the run is called, at a forward."""

    # The beginning.

    def attach(self, sources: Sequence[Source]) -> None:
        """Place every hook; if one cannot be placed, remove all and raise the error."""
        run = self.steps.run
        try:
            self._stack.callback(run.framework.prepare(run.settings))
            self._stack.callback(self._sources.close)
            self._place(sources)
            self._stack.callback(self._of_optimizers.close)
            for optimizer in run.optimizers:
                self.hook(optimizer)
            self._stack.callback(run.framework.on_every_step(*self.steps.other_updates.listeners(), run.faults))
            self.steps.boundary.await_forward(run.clock.sampled and self.steps.listens)
        except BaseException:
            self.steps.end()
            self._stack.close()
            raise

    def _place(self, sources: Sequence[Source]) -> None:
        """Place the hooks of ``sources`` and those of parameters; if one fails, remove all."""
        steps = self.steps
        try:
            self._sources.callback(steps.parts.remove_hooks)
            steps.listens = bool(sources)
            for source in sources:
                self._sources.enter_context(source(steps.run))
            steps.parts.find()
            for _, model in steps.run.chunks if sources else ():
                self._sources.callback(self._listen_to_forwards(steps.run, model))
        except BaseException:
            self._sources.close()
            raise

    def _listen_to_forwards(self, run: Run, model: Module) -> Remove:
        return run.listen(model, self.steps.forward_listener(model), unheard, "parameters")

    def hook(self, optimizer: Optimizer) -> None:
        """Place the hooks of an optimizer, unless it has them; raise an error if it cannot be watched."""
        if id(optimizer) not in self._hooked:
            self._hooks.check_optimizer(optimizer)
            remove = self._hooks.on_step(optimizer, self.steps)
            self._hooked[id(optimizer)] = optimizer, remove
            self._of_optimizers.callback(remove)

    def unhook(self, optimizer: Optimizer) -> None:
        """Remove the hooks of an optimizer, and let go of it."""
        self._hooked.pop(id(optimizer))[1]()
        self._of_optimizers.pop_all()  # without a call
        for _, remove in self._hooked.values():
            self._of_optimizers.callback(remove)

    def remove_at_end(self, remove: Remove) -> None:
        """Call ``remove`` when the session detaches."""
        self._stack.callback(remove)

    # Changes.

    def change(self, run: Run, schedule: Schedule, output: StepConsumer | None, sources: Sequence[Source]) -> None:
        """Watch ``run`` instead, which has the same model and optimizers, from the next step on. Call between steps.

        Raises:
            Exception: if a hook cannot be placed; then none is.
        """
        if self.steps.over:  # by a signal handler or another thread, since the step ended
            return
        before = self.steps.run
        run.adopt(before.optimizers)
        self._sources.close()
        self.steps.take(run, schedule, output)
        run.clock.begin(before.clock.step, False)
        self._place(sources)

    def count_only(self) -> None:
        """Remove every hook except those that count steps. Call where hooks can be removed."""
        self.steps.output = None
        self._sources.close()
        self.steps.listens = False
        self._disarm()

    # The end.

    def detach(self, at_once: bool = False) -> bool:
        """Remove every hook: afterwards model, optimizer and framework are as before attaching.

        While a framework calls its hooks, or if another thread trains, they stay in place without effect until the
        first forward after the next update, or until the next call of this method.

        Args:
            at_once: whether nothing can be training, since model and optimizers are no longer referenced.

        Returns:
            True if the hooks are removed.
        """
        self.steps.end()
        at_once |= self._ending
        if not at_once and (self.steps.working or self._trains_elsewhere() or self._hooks.at_work()):
            return False
        self._stack.close()
        self.steps.run.remove_hooks()
        return True

    def _trains_elsewhere(self) -> bool:
        """True if another thread trains and has not ended."""
        thread = self.steps.thread
        return thread is not threading.current_thread() and thread.is_alive()

    def leave(self) -> None:
        """Remove hooks that have stayed in place beyond the end, at the next forward: now an optimizer calls its hooks
        before an update."""
        if self._leaving:
            return
        self._leaving = True
        run = self.steps.run

        def close() -> None:
            attempt(run.faults, WHERE, self._stack.close)

        self._stack.callback(self._hooks.at_next_forward(run.chunks[0][1], close, run.faults))

    def end_by_itself(self, end: Callable[[], None]) -> None:
        """Call ``end`` at a forward once the schedule has ended and no step waits for other ranks. Hooks can be removed
        there; at the end of a step the framework still iterates over them."""
        self._end = end

    def finished(self) -> None:
        """End the run at a forward from now on, if it ends by itself: its schedule has ended."""
        end, self._end = self._end, None
        if end is None:
            return

        def end_if_nothing_waits() -> None:
            if self.steps.over or self.steps.waits:
                return
            self._ending = True
            try:
                end()
            finally:
                self._ending = False

        run = self.steps.run
        self._disarm = self._hooks.at_next_forward(run.chunks[0][1], end_if_nothing_waits, run.faults)
        self._stack.callback(self._disarm)
