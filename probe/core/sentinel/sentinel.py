"""The sentinel: at every step, sampled or not, it takes the loss, the norms of the gradients before they are clipped
and the facts of the loop, and passes them on for judging. It waits for no device and places no hook on the model.

Between the operators of a framework, code and data have left the processor's caches: each function that runs, and each
object that is looked at, takes several times as long as when it is repeated. So nothing is asked for twice, no function
of NumPy runs in a step like the one before, and what can be left to the thread that judges is.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from typing import NamedTuple
from weakref import WeakKeyDictionary, ref

from probe.core.backend.protocols import Optimizer, Remove, Tensor, TrainingLoop
from probe.core.checks.habits import FirstBatch
from probe.core.checks.update_facts import Gradients, UpdateFacts
from probe.core.door import attempt
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

LOOKS = frozenset({3, 13, 23})
"""Updates of an optimizer in which oddities are looked for."""
MOST_LOOKED = 4
"""Optimizers of which they are looked for."""
FIRST_UPDATES = 8
"""Updates in which collectives behind the backward are counted."""
FEWEST_UPDATES = 5
"""Updates in an epoch: programs with fewer may begin a loader for each."""
MOST_MADE = 16
"""Numbers of updates at the beginnings of backwards that are remembered."""
MOST_BACKWARDS = 4096
"""Backwards that are remembered until the next update, of an optimizer that may never be updated."""


class _Update(NamedTuple):
    """Update that has begun."""

    facts: UpdateFacts
    memory: OptimizerMemory
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
        self.roots = LossRoots(loop, watch.run, lambda: watch.parts, self._unregistered)
        """Reader of the losses."""
        self._running: dict[int, RunningBackward] = {}
        """The backward that runs on each thread; one that has raised stays until the next."""
        self._training_threads: set[int] = set()
        """Threads on which backwards have run."""
        self._clipping: list[tuple[OptimizerMemory, Sequence[int]]] = []
        """Positions of the gradients whose total norm was computed last."""
        self._of_nothing = self._of_parts = self._clipped_nothing = False
        """True if the last total norm was that of no gradient, and if such a norm was clipped by since the update."""
        self._cut = False
        """True if a checkpoint cut the graph since the last update."""
        self._epochs: WeakKeyDictionary[object, int] = WeakKeyDictionary()
        """Number of the latest epoch in which updates took samples, by sampler."""
        self._sampler: ref[object] | None = None
        """Sampler of the epoch that has begun last, and its number, until an update."""
        self._epoch, self._order_repeated = 0, False
        self._epochs_ended, self._made_before = 0, 0
        """Epochs of several updates that have ended, and updates before the latest one that has begun."""
        self._surveyed: object = None
        """Graph of a loss that was surveyed before the last update."""
        self._habits = set[str]()
        """Habits of the program since the last update."""
        self._made = 0
        """Updates of all optimizers so far."""
        self._begun: deque[int] = deque(maxlen=MOST_MADE)
        """Updates so far at the beginnings of the latest backwards, each number once."""
        self._updating: dict[int, _Update] = {}
        """Updates that have begun, by the identity of the optimizer."""

    def attach(self) -> Remove:
        """Begin to listen; return a function that ends it."""
        faults = self.faults
        with ExitStack() as placed:
            placed.callback(self._loop.on_backward(self.began, self.ended_backward, faults))
            placed.callback(self._loop.on_total_norm(self.measured, self.clipped, faults))
            placed.callback(self._loop.on_cut(self.cut, faults))
            placed.callback(self._loop.on_epoch(self.epoch, faults))
            placed.callback(self._loop.on_habit(self.habit, faults))
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

    def _unregistered(self) -> dict[int, str]:
        """Return the names of the parameters in plain containers of the models that no optimizer has, by identity."""
        owned = {identity for memory in self._optimizers.all() for identity in memory.identities}
        models = [model for _, model in self._watch.run.chunks]
        names = {identity: name for model in models for identity, name in self._loop.unregistered(model).items()}
        return {identity: name for identity, name in names.items() if identity not in owned}

    # Backwards.

    def began(self, root: Tensor | None, inputs: Collection[int]) -> None:
        """Take the value of the root of a backward that begins, and look at what it will add to."""
        if self._blind:
            return
        if self._watch.run.look is not None:  # for updates that no hook has seen
            self._watch.run.look()
        running = RunningBackward(inputs)
        running.made = self._made
        if self._made not in self._begun:
            self._begun.append(self._made)
        others = [backward for thread, backward in [*self._running.items()] if thread != running.thread]
        self._training_threads.add(running.thread)
        self._running[running.thread] = running
        for backward in (running, *others) if others else ():
            backward.shared = True
        if root is not None:
            running.root = self.roots.value(root, running)
        for memory in self._optimizers.all():
            if self._is_near(memory):
                self._look_before(memory, running)

    def _is_near(self, memory: OptimizerMemory) -> bool:
        """Return False if another thread trains these parameters: it may free their gradients while they are read."""
        if memory.thread is None:  # nothing has freed its gradients yet
            return True
        return memory.thread == threading.get_ident() or memory.thread not in self._training_threads

    def _look_before(self, memory: OptimizerMemory, running: RunningBackward) -> None:
        """Note which gradients were cleared, and which the backward will find."""
        some = self._loop.held(memory.some)
        if memory.backwards and self._loop.keeps(memory.some) and memory.was_cleared(some):
            is_lost = self._loop.versions(memory.some) == memory.values and all(gradient is None for gradient in some)
            discarded = memory.discarded + len(memory.backwards) if is_lost else 0
            memory.clear()
            memory.discarded = discarded
        marks = running.before[id(memory)] = GradientMarks(self._loop)
        marks.mark(some)
        if memory.again:
            self._look_for_stale(memory)

    def _look_for_stale(self, memory: OptimizerMemory) -> None:
        """Note which gradients of the last update nothing has cleared."""
        if not memory.applied.alive:
            memory.again = []
            return
        gradients = self._loop.held(memory.parameters)
        pairs = zip(memory.again, memory.applied.untouched(gradients), strict=True)
        memory.again = [was_again and is_untouched for was_again, is_untouched in pairs]
        if True not in memory.again:
            memory.again = []
        elif memory.leftover is None:  # programs clear them past the framework, too (``grad.data.zero_()``)
            stale = [
                gradient
                for gradient, again in zip(gradients, memory.again, strict=True)
                if again and gradient is not None
            ]
            memory.leftover = self._norms.have_numbers(stale[:: max(1, len(stale) // SOME)])

    def ended_backward(self) -> None:
        """Note whose parameters the backward has reached."""
        running = self._running.pop(threading.get_ident(), None)
        if running is None or self._blind:
            return
        for memory in self._optimizers.all():
            if id(memory) not in running.counted and self._is_near(memory):
                self._count(memory, running)
        running.before.clear()

    def _count(self, memory: OptimizerMemory, running: RunningBackward) -> None:
        """Note a backward if it has reached the parameters of an optimizer."""
        before = running.before.get(id(memory))
        if before is None:  # they were others then
            return
        some = self._loop.held(memory.some)
        pairs = zip(some, before.untouched(some), strict=True)
        reached = any(gradient is not None and not is_old for gradient, is_old in pairs)
        if not reached and (not running.inputs or memory.identities.isdisjoint(running.inputs)):
            return
        memory.reached.mark(some)
        memory.values = self._loop.versions(memory.some)
        if self._optimizers.world > 1 and memory.updates < FIRST_UPDATES:
            memory.at_backward = self._loop.collectives()
        if memory.again:
            memory.applied.mark(self._loop.held(memory.parameters))
        if len(memory.backwards) < MOST_BACKWARDS:
            memory.backwards.append(running)
        memory.accumulated |= reached
        memory.early_clips += [factor for _, factor in memory.clips]
        memory.forget_norms()
        if not running.scaled and not self._loop.keeps(memory.some):
            self._norms.take_returned(memory)
        models = [model for _, model in self._watch.run.chunks]
        memory.training, memory.reduced = self._loop.training(models), self._loop.reduces(models)
        memory.resting = self._loop.resting(models)

    def cut(self) -> None:
        """Note a checkpoint that no backward will reach."""
        self._cut = True

    def epoch(self, sampler: object, number: int) -> None:
        """Note an epoch that begins, and whether it has the order of the one before."""
        if self._blind or not self._loop.training([model for _, model in self._watch.run.chunks]):
            return
        self._order_repeated |= self._epochs.get(sampler) == number
        self._sampler, self._epoch = ref(sampler), number
        if self._made - self._made_before >= FEWEST_UPDATES:
            self._epochs_ended, self._made_before = self._epochs_ended + 1, self._made

    def habit(self, name: str, optimizer: Optimizer | None) -> None:
        """Note a habit of the program; of a schedule, whether another optimizer than its own has the parameters."""
        if self._blind:
            return
        if name == FirstBatch.habit and not self._loop.training([model for _, model in self._watch.run.chunks]):
            return  # an evaluation begins its loader again
        if name == "clip by value":
            for memory, clipped in zip(self._optimizers.all(), self._watch.run.optimizers, strict=False):
                memory.scaled |= self._is_scaled(memory, clipped, None)
        elif optimizer is None:
            self._habits.add(name)
        elif self._optimizers.number(optimizer) is None:
            owned = {*map(id, self._watch.run.framework.hooks.owned(optimizer))}
            if any(not owned.isdisjoint(memory.identities) for memory in self._optimizers.all()):
                self._habits.add("schedule of another")

    # Total norms.

    def measured(self, gradients: Sequence[Tensor]) -> None:
        """Take the norms of gradients that are about to be clipped."""
        self._clipping, self._of_nothing, self._of_parts = [], not gradients, False
        if self._blind:
            return
        identities = {*map(id, gradients)}
        for memory, optimizer in zip(self._optimizers.all(), self._watch.run.optimizers, strict=False):
            if not self._is_near(memory):
                continue
            all_gradients = self._loop.held(memory.parameters)
            positions = [
                n for n, gradient in enumerate(all_gradients) if gradient is not None and id(gradient) in identities
            ]
            if positions:
                self._clipping.append((memory, positions))
                is_part = self._loop.divided([memory.parameters[n] for n in positions])
                self._of_parts |= is_part and self._optimizers.world > 1
                self._norms.measure(memory, optimizer, all_gradients, positions)

    def clipped(self, total: float | Tensor, factor: Callable[[float], float]) -> None:
        """Note the factor by which the gradients are clipped whose total norm was computed last.

        Args:
            total: that norm; a tensor if only a device knows it.
            factor: returns the factor that belongs to a total norm.
        """
        clipping, self._clipping = self._clipping, []
        self._clipped_nothing |= self._of_nothing
        if self._of_parts:
            self._habits.add("parts clipped")
        for memory, positions in clipping:
            used: Factor = factor(total) if isinstance(total, float) else memory.numbers.factor(total, factor)
            if memory.late:
                memory.late = False
                memory.late_clips.append(used)
            else:
                memory.clips.append((positions, used))
                memory.at_clip = self._loop.collectives(), self._loop.versions(self._loop.held(memory.some))

    # Updates.

    def updating(self, optimizer: Optimizer, scale: Tensor | None) -> None:
        """Look at the gradients that an update is about to apply."""
        number = self._optimizers.number(optimizer)
        if number is None:
            return
        self._optimizers.look_again()
        memory = self._optimizers.updating(optimizer)
        memory.thread = threading.get_ident()
        for running in [*self._running.values()]:  # an update within a backward
            if id(memory) not in running.counted:
                running.counted.add(id(memory))
                self._count(memory, running)
        all_gradients = self._loop.held(memory.parameters)
        if memory.has_lost(all_gradients):
            self._optimizers.look()
            memory = self._optimizers.of(optimizer)
        backwards, elsewhere = memory.of_thread(), self._loop.keeps_elsewhere(optimizer)
        steps = self._steps(memory, optimizer)
        if elsewhere:
            gradients = self._norms.elsewhere(memory, optimizer, scale)
        else:
            gradients = Gradients(
                memory.there, *memory.stale(all_gradients), self._norms.read(memory, all_gradients, scale)
            )
        memory.rota.before()
        rewritten = memory.was_rewritten(self._loop.held(memory.some))
        facts = self._facts(number, optimizer, memory, gradients, len(backwards), rewritten)
        if any(backward.scaled for backward in backwards) and not elsewhere:
            facts = facts._replace(still_scaled=self._is_scaled(memory, optimizer, scale))
        measured = [measurement.positions for measurement in memory.measured]
        visible = elsewhere or self._loop.shows_gradients(optimizer)
        self._updating[id(optimizer)] = _Update(facts, memory, _roots(backwards), measured, visible, steps)

    def _facts(
        self,
        number: int,
        optimizer: Optimizer,
        memory: OptimizerMemory,
        gradients: Gradients,
        backwards: int,
        rewritten: bool = False,
        seen: bool = True,
    ) -> UpdateFacts:
        """Return what is known of an update before it, or after it if nothing has seen it."""
        visible = self._loop.shows_gradients(optimizer)
        scheduled = self._loop.advanced(optimizer)
        times = memory.advance(scheduled) if seen else 0
        return UpdateFacts(
            step=self._watch.run.clock.step,
            optimizer=number,
            names=memory.names,
            outcome="unknown",
            rates=self._loop.rates(optimizer),
            gradients=gradients,
            values=None,
            backwards=backwards,
            training=memory.training,
            scaled=memory.scaled,
            reduced=memory.reduced,
            resting=memory.resting,
            world=self._optimizers.world if backwards else 1,
            clip=1.0,
            strangers=self._optimizers.strangers(self.roots.survey),
            shared=self._optimizers.shared(),
            replaced=self._watch.parts.replaced,
            trainable=memory.trainable(self._loop.requires(memory.parameters)) if visible else memory.none,
            state_steps=None,
            ties=self._optimizers.tied(),
            earlier_ties=self._optimizers.earlier_ties,
            uses=self.roots.survey.uses,
            sizes=memory.sizes,
            groups=memory.groups,
            parameter_dtypes=memory.dtypes,
            cut=self._cut,
            beginning=self.roots.beginning,
            rewritten=rewritten,
            seen=seen,
            shown=not self._loop.keeps_elsewhere(optimizer),
            clipped_nothing=self._clipped_nothing,
            discarded=memory.discarded if memory.applies_latest(self._loop.held(memory.some)) else 0,
            hidden=self.roots.survey.hidden,
            normalises=self._loop.normalises(optimizer),
            order_repeated=self._order_repeated,
            inputs_learn=self.roots.survey.strangers,
            loss_graph=self.roots.survey.graph,
            habits=self._habits_now(memory),
            talks=self.roots.survey.talks,
            reduces=self._reduces(memory),
            in_turn=memory.is_in_turn(self._made, self._begun),
            operations=self._operations(),
            epochs=self._epochs_ended,
            scheduled=scheduled,
            overrun=self._loop.overrun(optimizer, times) if times > 1 else "",
            forwards=self._forwards(),
            unused=self.roots.survey.unused,
            oddities=self._oddities(number, memory, optimizer),
        )

    def _reduces(self, memory: OptimizerMemory) -> bool:
        """Return whether collectives reduce the gradients of one of the first updates of an optimizer by itself."""
        return 0 <= memory.at_backward <= self._loop.collectives() - len(memory.present) < self._loop.collectives()

    def _operations(self) -> int:
        """Return the operations that have entered graphs since the last step, if one was surveyed since; else 0."""
        before, self._surveyed = self._surveyed, self.roots.survey.graph
        return self._watch.boundary.operations or 0 if before is not self._surveyed else 0

    def _habits_now(self, memory: OptimizerMemory) -> frozenset[str]:
        """Return the habits of the program since the last update, at one of an optimizer."""
        adds = self._loop.keeps(memory.some) and memory.adds_to_another(self._made)
        more = {"adds to another": adds, "keeps graphs": self.roots.survey.keeps_graphs}
        if memory.at_clip[0] >= 0:
            versions = self._loop.versions(self._loop.held(memory.some))
            more["reduced after a clip"] = memory.was_reduced_after_clip(self._loop.collectives(), versions)
        return frozenset((*self._habits, *(name for name, is_met in more.items() if is_met)))

    def _oddities(
        self, number: int, memory: OptimizerMemory, optimizer: Optimizer
    ) -> Callable[[], Mapping[str, tuple[str, ...]]] | None:
        """Look for oddities in a few updates; return a function that waits for what the latest look shows."""
        memory.updates += 1
        if memory.updates in LOOKS and number < MOST_LOOKED:
            models = [model for _, model in self._watch.run.chunks]
            look = attempt(self.faults, "oddities", self._loop.oddities, models, optimizer)
            memory.oddities = look or memory.oddities
        return memory.oddities

    def _forwards(self) -> int | None:
        """Return what counts the forwards. Between ranks a wrapper writes the batch statistics, too."""
        models = [model for _, model in self._watch.run.chunks]
        return self._loop.forwards(models) if self._optimizers.world == 1 else None

    def _is_scaled(self, memory: OptimizerMemory, optimizer: Optimizer, scale: Tensor | None) -> bool:
        """Return whether the gradients of an update that begins have the factor of a scaler, which nothing takes away.

        Args:
            scale: factor that the optimizer takes away itself.
        """
        if not self._loop.keeps(memory.parameters):  # a scaler returns other gradients than it gets
            some = self._loop.held(memory.some)
            return scale is None and 0 < len(some) == len(memory.reached) and all(memory.reached.same(some))
        factor = self._watch.run.framework.hooks.held_scale(optimizer)
        if scale is not None or factor is None:
            return False
        return self._watch.run.framework.tensors.number(factor) != 1.0

    def _steps(self, memory: OptimizerMemory, optimizer: Optimizer) -> Callable[[], int] | int | None:
        """Return the steps that the optimizer's state has counted, or a function that waits for them."""
        steps = self._loop.counted(optimizer, memory.parameters)
        if steps is None or isinstance(steps, int):
            return steps
        wait = memory.numbers.add(steps)
        return lambda: int(wait())

    def unseen(self, optimizer: Optimizer) -> None:
        """Pass on the losses of an update that has ended, and in which no hook runs."""
        number = self._optimizers.number(optimizer)
        if number is None:
            return
        memory = self._optimizers.of(optimizer)
        backwards, absent = memory.backwards, Gradients(memory.none, memory.none, memory.none, None)
        facts = self._facts(number, optimizer, memory, absent, len(backwards), seen=False)
        steps = self._steps(memory, optimizer)
        ended = ReadUpdate(facts, "unknown", None, _roots(backwards), clips=memory.clips, steps=steps)
        self._end(memory, ended)

    def succeeded(self, before: Optimizer, optimizer: Optimizer) -> None:
        """Go on with what is remembered of an optimizer for another, which has taken its place."""
        self._optimizers.hand_over(before, optimizer)

    def updated(self, optimizer: Optimizer, outcome: Outcome, searches: bool) -> None:
        """Pass the update on, which has ended.

        Args:
            searches: see :class:`probe.core.checks.update_facts.UpdateFacts`.
        """
        update = self._updating.pop(id(optimizer), None)
        if update is None:
            return
        memory, looked = update.memory, update.memory.rota.after()
        gradients = self._loop.held(memory.parameters)
        memory.applied.mark(gradients)
        memory.again = [gradient is not None for gradient in gradients]
        remade = memory.remade and self._remembers(memory, optimizer)
        ended = ReadUpdate(
            update.facts._replace(searches=searches, remade=remade) if searches or remade else update.facts,
            outcome if update.visible else "unknown",
            looked,
            update.roots,
            memory.leftover,
            memory.dropped,
            memory.own_sums,
            memory.clips,
            update.measured,
            memory.late_clips,
            memory.early_clips,
            update.steps,
        )
        self._end(memory, ended)

    def _remembers(self, memory: OptimizerMemory, optimizer: Optimizer) -> bool:
        """Return whether an optimizer that has updated keeps numbers from one update to the next."""
        state, updated = self._watch.run.framework.hooks.state, zip(memory.parameters, memory.again, strict=True)
        return any(state(optimizer, parameter) for parameter, has_gradient in updated if has_gradient)

    def _end(self, memory: OptimizerMemory, ended: ReadUpdate) -> None:
        self._made += 1
        memory.made = self._made
        memory.numbers.send()
        if self._sampler is not None and (sampler := self._sampler()) is not None:
            self._epochs[sampler] = self._epoch
        self._sampler = None
        self._cut, self._clipped_nothing, self.roots.beginning = False, False, None
        self._habits.clear()
        self._optimizers.forget_present()
        memory.clear()
        self._receive(ended)


def _roots(backwards: Sequence[RunningBackward]) -> list[Callable[[], float]]:
    return [backward.root for backward in backwards if backward.root is not None]
