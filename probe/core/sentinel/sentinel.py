"""The sentinel: at every step, sampled or not, it takes the loss, the norms of the gradients before they are clipped
and the facts of the loop, and passes them on for judging. It waits for no device and places no hook on the model.

Between the operators of a framework, code and data have left the processor's caches: each function that runs, and each
object that is looked at, takes several times as long as when it is repeated. So nothing is asked for twice, no function
of NumPy runs in a step like the one before, and what can be left to the thread that judges is.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from typing import NamedTuple

from probe.core.backend.protocols import Optimizer, Remove, Tensor, TrainingLoop
from probe.core.checks.update_facts import Gradients, UpdateFacts
from probe.core.faults import Faults
from probe.core.instrumentation.training_steps import TrainingSteps
from probe.core.records import Outcome
from probe.core.sentinel.device_numbers import Factor
from probe.core.sentinel.gradient_marks import GradientMarks
from probe.core.sentinel.gradient_norms import GradientNorms
from probe.core.sentinel.loss_roots import LossRoots
from probe.core.sentinel.optimizer_memory import SOME, OptimizerMemory, RunningBackward
from probe.core.sentinel.read_update import ReadUpdate
from probe.core.sentinel.watched_optimizers import WatchedOptimizers

MOST_BACKWARDS = 4096
"""Backwards that are remembered until the next update, of an optimizer that may never be updated."""


class _Update(NamedTuple):
    """Update that has begun."""

    facts: UpdateFacts
    watched: OptimizerMemory
    roots: Sequence[Callable[[], float]]
    measured: Sequence[Sequence[int]]
    visible: bool
    """False if its gradients cannot be seen, so that nothing shows what it has applied."""
    steps: Callable[[], int] | int | None
    """Steps that the optimizer's state has counted before it, or a function that waits for them."""


class Sentinel:
    """Listener to the updates of a session, and to the backwards and total norms of the process.

    Args:
        watch: the steps of the session.
        receive: is called with each update that has ended.
    """

    def __init__(self, watch: TrainingSteps, loop: TrainingLoop, receive: Callable[[ReadUpdate], object]) -> None:
        self._watch, self._loop, self._receive, self._process = watch, loop, receive, os.getpid()
        self._optimizers, self._norms = WatchedOptimizers(watch, loop), GradientNorms(loop, watch.run)
        self.roots = LossRoots(loop, watch.run, lambda: watch.parameters)
        """Reader of the losses."""
        self._running: dict[int, RunningBackward] = {}
        """The backward that runs on each thread; one that has raised stays until the next."""
        self._clipping: list[tuple[OptimizerMemory, Sequence[int]]] = []
        """Positions of the gradients whose total norm was computed last."""
        self._cut = False
        """True if a checkpoint cut the graph since the last update."""
        self._updating: dict[int, _Update] = {}
        """Updates that have begun, by the identity of the optimizer."""

    def attach(self) -> Remove:
        """Begin to listen; return a function that ends it."""
        faults = self.faults
        with ExitStack() as placed:
            placed.callback(self._loop.on_backward(self.began, self.ended_backward, faults))
            placed.callback(self._loop.on_total_norm(self.measured, self.clipped, faults))
            placed.callback(self._loop.on_cut(self.cut, faults))
            return placed.pop_all().close

    @property
    def faults(self) -> Faults:
        """The counter of failures."""
        return self._watch.run.faults

    @property
    def _blind(self) -> bool:
        """True in a forked child, whose updates nothing sees, and while a device records what it will repeat."""
        run = self._watch.run
        return os.getpid() != self._process or (run.capturing is not None and run.captured())

    # Backwards.

    def began(self, root: Tensor | None, inputs: Collection[int]) -> None:
        """Take the value of the root of a backward that begins, and look at what it will add to."""
        if self._blind:
            return
        if self._watch.run.look is not None:  # for updates that no hook has seen
            self._watch.run.look()
        running = RunningBackward(inputs)
        others = [backward for thread, backward in self._running.items() if thread != running.thread]
        self._running[running.thread] = running
        for backward in (running, *others) if others else ():
            backward.shared = True
        if root is not None:
            running.root = self.roots.value(root, running)
        for watched in self._optimizers.all():
            self._look_before(watched, running)

    def _look_before(self, watched: OptimizerMemory, running: RunningBackward) -> None:
        """Note which gradients were cleared, and which the backward will find."""
        some = self._loop.held(watched.some)
        if watched.backwards and self._loop.keeps(watched.some) and watched.was_cleared(some):
            watched.clear()
        marks = running.before[id(watched)] = GradientMarks(self._loop)
        marks.mark(some)
        if watched.again:
            self._look_for_stale(watched)

    def _look_for_stale(self, watched: OptimizerMemory) -> None:
        """Note which gradients of the last update nothing has cleared."""
        if not watched.applied.alive:
            watched.again = []
            return
        gradients = self._loop.held(watched.parameters)
        pairs = zip(watched.again, watched.applied.untouched(gradients), strict=True)
        watched.again = [was_again and is_untouched for was_again, is_untouched in pairs]
        if True not in watched.again:
            watched.again = []
        elif watched.leftover is None:  # programs clear them past the framework, too (``grad.data.zero_()``)
            stale = [
                gradient
                for gradient, again in zip(gradients, watched.again, strict=True)
                if again and gradient is not None
            ]
            watched.leftover = self._norms.have_numbers(stale[:: max(1, len(stale) // SOME)])

    def ended_backward(self) -> None:
        """Note whose parameters the backward has reached."""
        running = self._running.pop(threading.get_ident(), None)
        if running is None or self._blind:
            return
        for watched in self._optimizers.all():
            if id(watched) not in running.counted:
                self._count(watched, running)
        running.before.clear()

    def _count(self, watched: OptimizerMemory, running: RunningBackward) -> None:
        """Note a backward if it has reached the parameters of an optimizer."""
        before = running.before.get(id(watched))
        if before is None:  # they were others then
            return
        some = self._loop.held(watched.some)
        pairs = zip(some, before.untouched(some), strict=True)
        reached = any(gradient is not None and not is_old for gradient, is_old in pairs)
        if not reached and (not running.inputs or watched.identities.isdisjoint(running.inputs)):
            return
        watched.reached.mark(some)
        if watched.again:
            watched.applied.mark(self._loop.held(watched.parameters))
        if len(watched.backwards) < MOST_BACKWARDS:
            watched.backwards.append(running)
        watched.accumulated |= reached
        watched.forget_norms()
        if not running.scaled and not self._loop.keeps(watched.some):
            self._norms.take_returned(watched)
        models = [model for _, model in self._watch.run.chunks]
        watched.training, watched.reduced = self._loop.training(models), self._loop.reduces(models)

    def cut(self) -> None:
        """Note a checkpoint that no backward will reach."""
        self._cut = True

    # Total norms.

    def measured(self, gradients: Sequence[Tensor]) -> None:
        """Take the norms of gradients that are about to be clipped."""
        self._clipping = []
        if self._blind:
            return
        identities = {*map(id, gradients)}
        for watched, optimizer in zip(self._optimizers.all(), self._watch.run.optimizers, strict=False):
            all_gradients = self._loop.held(watched.parameters)
            positions = [
                n for n, gradient in enumerate(all_gradients) if gradient is not None and id(gradient) in identities
            ]
            if positions:
                self._clipping.append((watched, positions))
                self._norms.measure(watched, optimizer, all_gradients, positions)

    def clipped(self, total: float | Tensor, factor: Callable[[float], float]) -> None:
        """Note the factor by which the gradients are clipped whose total norm was computed last.

        Args:
            total: that norm; a tensor if only a device knows it.
            factor: returns the factor that belongs to a total norm.
        """
        clipping, self._clipping = self._clipping, []
        for watched, positions in clipping:
            used: Factor = factor(total) if isinstance(total, float) else watched.numbers.factor(total, factor)
            if watched.late:
                watched.late = False
                watched.late_clips.append(used)
            else:
                watched.clips.append((positions, used))

    # Updates.

    def updating(self, optimizer: Optimizer, scale: Tensor | None) -> None:
        """Look at the gradients that an update is about to apply."""
        number = self._optimizers.number(optimizer)
        if number is None:
            return
        self._optimizers.look_again()
        watched = self._optimizers.updating(optimizer)
        for running in [*self._running.values()]:  # an update within a backward
            if id(watched) not in running.counted:
                running.counted.add(id(watched))
                self._count(watched, running)
        all_gradients = self._loop.held(watched.parameters)
        if watched.has_lost(all_gradients):
            self._optimizers.look()
            watched = self._optimizers.of(optimizer)
        backwards, elsewhere = watched.of_thread(), self._loop.keeps_elsewhere(optimizer)
        steps = self._steps(watched, optimizer)
        if elsewhere:
            gradients = self._norms.elsewhere(watched, optimizer, scale)
        else:
            gradients = Gradients(
                watched.there, *watched.stale(all_gradients), self._norms.read(watched, all_gradients, scale)
            )
        watched.rota.before()
        rewritten = watched.was_rewritten(self._loop.held(watched.some))
        facts = self._facts(number, optimizer, watched, gradients, len(backwards), rewritten)
        measured = [measurement.positions for measurement in watched.measured]
        visible = elsewhere or self._loop.shows_gradients(optimizer)
        self._updating[id(optimizer)] = _Update(facts, watched, _roots(backwards), measured, visible, steps)

    def _facts(
        self,
        number: int,
        optimizer: Optimizer,
        watched: OptimizerMemory,
        gradients: Gradients,
        backwards: int,
        rewritten: bool = False,
        seen: bool = True,
    ) -> UpdateFacts:
        """Return what is known of an update before it, or after it if nothing has seen it."""
        visible = self._loop.shows_gradients(optimizer)
        return UpdateFacts(
            step=self._watch.run.clock.step,
            optimizer=number,
            names=watched.names,
            outcome="unknown",
            rates=self._loop.rates(optimizer),
            gradients=gradients,
            values=None,
            backwards=backwards,
            training=watched.training,
            scaled=watched.scaled,
            reduced=watched.reduced,
            world=self._optimizers.world if backwards else 1,
            clip=1.0,
            strangers=self._optimizers.strangers(),
            shared=self._optimizers.shared(),
            replaced=self._watch.parameters.replaced,
            trainable=watched.trainable(self._loop.requires(watched.parameters)) if visible else watched.none,
            state_steps=None,
            ties=self._optimizers.tied(),
            uses=self.roots.survey.uses,
            sizes=watched.sizes,
            groups=watched.groups,
            parameter_dtypes=watched.dtypes,
            cut=self._cut,
            beginning=self.roots.beginning,
            rewritten=rewritten,
            seen=seen,
            shown=not self._loop.keeps_elsewhere(optimizer),
        )

    def _steps(self, watched: OptimizerMemory, optimizer: Optimizer) -> Callable[[], int] | int | None:
        """Return the steps that the optimizer's state has counted, or a function that waits for them."""
        steps = self._loop.counted(optimizer, watched.parameters)
        if steps is None or isinstance(steps, int):
            return steps
        wait = watched.numbers.add(steps)
        return lambda: int(wait())

    def unseen(self, optimizer: Optimizer) -> None:
        """Pass on the losses of an update that has ended, and in which no hook runs."""
        number = self._optimizers.number(optimizer)
        if number is None:
            return
        watched = self._optimizers.of(optimizer)
        backwards, absent = watched.backwards, Gradients(watched.none, watched.none, watched.none, None)
        facts = self._facts(number, optimizer, watched, absent, len(backwards), seen=False)
        steps = self._steps(watched, optimizer)
        ended = ReadUpdate(facts, "unknown", None, _roots(backwards), clips=watched.clips, steps=steps)
        self._end(watched, ended)

    def updated(self, optimizer: Optimizer, outcome: Outcome, searches: bool) -> None:
        """Pass the update on, which has ended.

        Args:
            searches: see :class:`probe.core.checks.update_facts.UpdateFacts`.
        """
        update = self._updating.pop(id(optimizer), None)
        if update is None:
            return
        watched, looked = update.watched, update.watched.rota.after()
        gradients = self._loop.held(watched.parameters)
        watched.applied.mark(gradients)
        watched.again = [gradient is not None for gradient in gradients]
        ended = ReadUpdate(
            update.facts._replace(searches=True) if searches else update.facts,
            outcome if update.visible else "unknown",
            looked,
            update.roots,
            watched.leftover,
            watched.dropped,
            watched.own_sums,
            watched.clips,
            update.measured,
            watched.late_clips,
            update.steps,
        )
        self._end(watched, ended)

    def _end(self, watched: OptimizerMemory, ended: ReadUpdate) -> None:
        watched.numbers.send()
        self._cut, self.roots.beginning = False, None
        self._optimizers.forget_present()
        watched.clear()
        self._receive(ended)


def _roots(backwards: Sequence[RunningBackward]) -> list[Callable[[], float]]:
    return [backward.root for backward in backwards if backward.root is not None]
