"""The sentinel: at every step, sampled or not, it takes the loss, the norms of the gradients before they are clipped
and the facts of the loop, and passes them on for judging. It waits for no device and places no hook on the model."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple, Protocol

import numpy as np

from probe.core.backend.protocols import Block, Optimizer, Parameter, Remove, Tensor, TrainingLoop
from probe.core.checks.beginning import Beginning
from probe.core.checks.update_facts import Array, Gradients, UpdateFacts
from probe.core.door import attempt
from probe.core.faults import Faults
from probe.core.instrumentation.context import Run
from probe.core.instrumentation.parameters import Parameters
from probe.core.records import Outcome
from probe.core.sentinel.gradient_marks import GradientMarks
from probe.core.sentinel.graph_survey import GraphSurvey
from probe.core.sentinel.optimizer_memory import SOME, MeasuredGradients, OptimizerMemory, RunningBackward, presence
from probe.core.sentinel.read_update import ReadUpdate, unscaled_norms
from probe.core.sentinel.rota import Rota

NORMS = ("sum", "sumsq")
"""Moments of a gradient that are taken at every step."""
MOST_STRANGERS = 512
"""Parameters in no optimizer that are looked at, at most."""
MOST_BACKWARDS = 4096
"""Backwards that are remembered until the next update, of an optimizer that may never be updated."""
MOST_WALKS = 10
"""Incidents of a run of which the graph is walked."""
UPDATES_A_LOOK, SHARE_OF_LOOKS = 4, 0.01
"""Updates after which parameters are searched for that have come or gone, and the part of the time that this takes at
most."""


class SeenSession(Protocol):
    """Session, as far as the sentinel reads it."""

    @property
    def run(self) -> Run:
        """The run in progress."""

    @property
    def parameters(self) -> Parameters:
        """The parameters of the models."""


class _Update(NamedTuple):
    """Update that has begun."""

    facts: UpdateFacts
    watched: OptimizerMemory
    roots: tuple[Callable[[], float], ...]
    shown: bool
    """False if its gradients cannot be seen, so that nothing shows what it has applied."""


class Sentinel:
    """Listener to the updates of a session, and to the backwards and total norms of the process.

    Args:
        watch: the session.
        receive: is called with each update that has ended.
    """

    def __init__(self, watch: SeenSession, loop: TrainingLoop, receive: Callable[[ReadUpdate], object]) -> None:
        self._watch, self._loop, self._receive = watch, loop, receive
        self.suspect: Callable[[], object] = lambda: None
        """Function that is called where a loss on the host is not finite."""
        self._tensors, self._process = watch.run.framework.tensors, os.getpid()
        self._watched: dict[int, OptimizerMemory] = {}
        self._running: dict[int, RunningBackward] = {}
        """The backward that runs on each thread; one that has raised stays until the next."""
        self._present: list[OptimizerMemory] | None = None
        """All that is watched; None if it has to be looked for."""
        self._clipping: list[tuple[OptimizerMemory, Sequence[int]]] = []
        """Positions of the gradients whose total norm was computed last."""
        self._cut = False
        """True if a checkpoint cut the graph since the last update."""
        self._beginning: Beginning | None = None
        """Beginning of the values that are not finite, of a root since the last update."""
        self._survey = GraphSurvey(loop, self._names)
        self._tracing, self._walks = True, 0
        """False while an incident lasts; number of incidents whose graph was walked."""
        self._updating: dict[int, _Update] = {}
        """Updates that have begun, by the identity of the optimizer."""
        self._updates, self._looked_at, self._look_seconds = 0, 0.0, 0.0
        """Updates since parameters were searched for, when that was, and how long it took."""
        self._ties: tuple[object, tuple[tuple[str, ...], ...]] = (None, ())
        self._outside: Sequence[tuple[str, Parameter]] | None = None
        """Parameters that are in no optimizer, with their names; None if they have to be looked for."""

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
        others = [other for thread, other in self._running.items() if thread != running.thread]
        self._running[running.thread] = running
        for one in (running, *others) if others else ():
            one.shared = True
        if root is not None:
            running.root = self._value(root, running)
        for watched in self._each():
            self._look_before(watched, running)

    def _trace(self, root: Tensor, value: float) -> None:
        """Look for the beginning of a value that is not finite, once an incident."""
        if math.isfinite(value):
            self._tracing = True
            return
        self.suspect()
        if self._tracing and self._walks < MOST_WALKS:
            self._tracing, self._walks = False, self._walks + 1
            self._beginning = attempt(self.faults, "graph walk", self._loop.first_not_finite, root, self._names())

    def _names(self) -> dict[int, str]:
        """Return the names of the parameters by identity."""
        return {identity: watched.name for identity, watched in self._watch.parameters.every.items()}

    def _value(self, root: Tensor, running: RunningBackward) -> Callable[[], float]:
        """Return a function to the value of a root, a copy of which is made at once, without a scaler's factor."""
        scale = self._loop.scale_of(root)
        running.scaled = scale is not None
        value, factor = self._number(root), 1.0 if scale is None else self._number(scale)
        if isinstance(value, float):
            self._trace(root, value)
        attempt(self.faults, "graph walk", self._survey.look, root)
        if isinstance(value, float) and isinstance(factor, float):
            known = value / factor if factor else math.nan
            return lambda: known
        wait = self._tensors.to_host([each for each in (value, factor) if not isinstance(each, float)])

        def waited() -> float:
            numbers = wait()[:, 0].tolist()
            one = value if isinstance(value, float) else numbers.pop(0)
            other = factor if isinstance(factor, float) else numbers.pop(0)
            return one / other if other else math.nan

        return waited

    def _number(self, tensor: Tensor) -> float | Block:
        number = self._tensors.number(tensor)
        return self._tensors.moments([tensor], ("sum",), 0.0, None) if number is None else number

    def _look_before(self, watched: OptimizerMemory, running: RunningBackward) -> None:
        """Note which gradients were cleared, and which the backward will find."""
        some = self._loop.held(watched.some)
        if watched.backwards and self._loop.keeps(watched.some) and watched.was_cleared(some):
            watched.clear()
        marks = running.before[id(watched)] = GradientMarks(self._loop)
        marks.mark(some)
        if watched.again.any():
            watched.again &= watched.applied.untouched(self._loop.held(watched.parameters))
            if watched.leftover is None and watched.again.any():
                watched.leftover = self._leftover(watched)

    def _leftover(self, watched: OptimizerMemory) -> Callable[[], bool]:
        """Return a function that waits for whether gradients have numbers that no operation was seen to write: programs
        clear them past the framework, too (``grad.data.zero_()``)."""
        held = self._loop.held(watched.parameters)
        stale = [one for one, again in zip(held, watched.again, strict=True) if again and one is not None]
        wait = self._tensors.to_host([self._tensors.moments(stale[:: max(1, len(stale) // SOME)], NORMS, 0.0, None)])
        return lambda: bool((wait() != 0).any())

    def ended_backward(self) -> None:
        """Note whose parameters the backward has reached."""
        running = self._running.pop(threading.get_ident(), None)
        if running is None or self._blind:
            return
        for watched in self._each():
            if id(watched) not in running.counted:
                self._count(watched, running)
        running.before.clear()

    def _count(self, watched: OptimizerMemory, running: RunningBackward) -> None:
        """Note a backward if it has reached the parameters of an optimizer."""
        before = running.before.get(id(watched))
        if before is None:  # they were others then
            return
        some = self._loop.held(watched.some)
        there = [gradient is not None for gradient in some]
        reached = any(there) and not before.untouched(some)[there].all()
        if not reached and (not running.inputs or watched.identities.isdisjoint(running.inputs)):
            return
        watched.reached.mark(some)
        if watched.again.any():
            watched.applied.mark(self._loop.held(watched.parameters))
        if len(watched.backwards) < MOST_BACKWARDS:
            watched.backwards.append(running)
        watched.accumulated |= reached
        watched.forget_norms()
        if not self._loop.keeps(watched.some):
            self._take(watched, running)
        models = [model for _, model in self._watch.run.chunks]
        watched.training, watched.reduced = self._loop.training(models), self._loop.reduces(models)
        watched.world = self._watch.run.framework.groups.world_size()

    def _take(self, watched: OptimizerMemory, running: RunningBackward) -> None:
        """Take the norms of the gradients that a backward returns: the program may drop them, so that no update shows
        them."""
        present = [(n, one) for n, one in enumerate(self._loop.held(watched.parameters)) if one is not None]
        if running.scaled or not present:
            return
        positions, identities = [n for n, _ in present], [id(gradient) for _, gradient in present]
        block = self._tensors.moments([gradient for _, gradient in present], NORMS, 0.0, None)
        watched.measured.append(MeasuredGradients(positions, identities, None, block, returned=True))
        watched.returned.append((tuple(watched.names[n] for n in positions), block))

    def cut(self) -> None:
        """Note a checkpoint that no backward will reach."""
        self._cut = True

    # Total norms.

    def measured(self, gradients: Sequence[Tensor]) -> None:
        """Take the norms of gradients that are about to be clipped."""
        self._clipping = []
        if self._blind:
            return
        identities = set(map(id, gradients))
        for watched, optimizer in zip(self._each(), self._watch.run.optimizers, strict=False):
            held = self._loop.held(watched.parameters)
            positions = [n for n, one in enumerate(held) if one is not None and id(one) in identities]
            if positions:
                self._clipping.append((watched, positions))
                self._measure(watched, optimizer, held, positions)

    def _measure(
        self, watched: OptimizerMemory, optimizer: Optimizer, held: Sequence[Tensor | None], positions: Sequence[int]
    ) -> None:
        watched.late = not watched.backwards and watched.holds_applied(held)
        if watched.late:
            return
        scale = self._watch.run.framework.hooks.held_scale(optimizer)
        # a factor that only a device knows is hardly 1
        watched.scaled = scale is not None and self._tensors.number(scale) != 1.0
        origins = {n: id(held[n]) for n in positions}
        known = {n for one in watched.measured for n in one.places(held, origins)}
        new = [(n, gradient) for n in positions if n not in known and (gradient := held[n]) is not None]
        if not new or watched.scaled:
            return
        keeps = self._loop.keeps(watched.parameters)
        references = [self._loop.reference(gradient) for _, gradient in new] if keeps else None
        block = self._tensors.moments([gradient for _, gradient in new], NORMS, 0.0, None)
        where = [n for n, _ in new]
        watched.measured.append(MeasuredGradients(where, [origins[n] for n in where], references, block))

    def clipped(self, factor: float) -> None:
        """Note the factor by which the gradients are clipped whose total norm was computed last."""
        clipping, self._clipping = self._clipping, []
        for watched, positions in clipping:
            if watched.late:
                watched.clipped_late, watched.late = watched.clipped_late or factor < 1, False
                continue
            for position in positions:
                watched.factors[position] = watched.factors.get(position, 1.0) * factor

    # Updates.

    def updating(self, optimizer: Optimizer, scale: Tensor | None) -> None:
        """Look at the gradients that an update is about to apply."""
        run = self._watch.run
        number = next((n for n, one in enumerate(run.optimizers) if one is optimizer), None)
        if number is None:
            return
        self._look_again()
        watched = self._of(optimizer)
        for running in [*self._running.values()]:  # an update within a backward
            if id(watched) not in running.counted:
                running.counted.add(id(watched))
                self._count(watched, running)
        held = self._loop.held(watched.parameters)
        if watched.has_lost(presence(held)):
            self._look()
            watched = self._of(optimizer)
        backwards = watched.of_thread()
        gradients = self._gradients(watched, held, scale)
        watched.rota.before()
        facts = self._facts(number, optimizer, watched, gradients, len(backwards))
        rewritten = watched.was_rewritten(self._loop.held(watched.some))
        facts = facts._replace(rewritten=rewritten, clips=self._clips(watched))
        roots = tuple(backward.root for backward in backwards if backward.root is not None)
        self._updating[id(optimizer)] = _Update(facts, watched, roots, self._loop.shows_gradients(optimizer))

    def _facts(
        self, number: int, optimizer: Optimizer, watched: OptimizerMemory, gradients: Gradients, backwards: int
    ) -> UpdateFacts:
        """Return what is known of an update before it, or after it if nothing has seen it."""
        shown = self._loop.shows_gradients(optimizer)
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
            world=watched.world,
            clip=min(watched.factors.values(), default=1.0),
            strangers=self._strangers(),
            replaced=self._watch.parameters.replaced,
            trainable=np.asarray(self._loop.requires(watched.parameters), np.bool_) & shown,
            state_steps=self._loop.counted(optimizer, watched.parameters),
            ties=self._tied(),
            uses=self._survey.uses,
            sizes=watched.sizes,
            groups=watched.groups,
            parameter_dtypes=watched.dtypes,
            cut=self._cut,
            beginning=self._beginning,
            clipped_late=watched.clipped_late,
        )

    def unseen(self, optimizer: Optimizer) -> None:
        """Pass on the losses of an update that has ended, and in which no hook runs."""
        run = self._watch.run
        number = next((n for n, one in enumerate(run.optimizers) if one is optimizer), None)
        if number is None:
            return
        watched = self._of(optimizer)
        none = np.zeros(len(watched.parameters), np.bool_)
        backwards, absent = watched.backwards, Gradients(none, none, none, None)
        facts = self._facts(number, optimizer, watched, absent, len(backwards))._replace(seen=False)
        self._cut, self._beginning, self._present = False, None, None
        watched.clear()
        roots = tuple(backward.root for backward in backwards if backward.root is not None)
        self._receive(ReadUpdate(facts, None, roots))

    def _look_again(self) -> None:
        """Search now and then for parameters that have come or gone: sampled steps do, and may be far apart."""
        self._updates += 1
        passed = time.perf_counter() - self._looked_at
        if self._updates >= UPDATES_A_LOOK and self._look_seconds <= SHARE_OF_LOOKS * passed:
            self._look()

    def _look(self) -> None:
        begun = time.thread_time()
        self._watch.parameters.look()
        self._look_seconds = time.thread_time() - begun
        self._updates, self._looked_at = 0, time.perf_counter()
        self._present = None

    def _gradients(self, watched: OptimizerMemory, held: Sequence[Tensor | None], scale: Tensor | None) -> Gradients:
        there = presence(held)
        again = untouched = np.zeros_like(there)
        if len(watched.applied) and watched.backwards:
            again = watched.again & watched.applied.same(held)
        elif len(watched.applied):
            untouched = watched.applied.untouched(held)
        return Gradients(there, again, untouched, self._read(watched, held, scale))

    def _read(
        self, watched: OptimizerMemory, held: Sequence[Tensor | None], scale: Tensor | None
    ) -> Callable[[], Array] | None:
        """Return a function that waits for the norms and sums, those from before a clip where they were taken."""
        rest = {n: gradient for n, gradient in enumerate(held) if gradient is not None}
        if not rest:
            return None
        if scale is not None and watched.returned:  # the backward has returned them with its factor
            watched.returned.clear()
            watched.forget_norms()
        origins = dict(zip(rest, self._loop.origins([*rest.values()]), strict=True)) if watched.measured else {}
        blocks, places, is_scaled = list[Block](), list[int](), list[bool]()
        for one in watched.measured:
            blocks.append(one.block)
            places += (new := one.places(held, origins))
            is_scaled += [one.returned] * len(new)
            for n in new:
                rest.pop(n, None)
        if rest:
            blocks.append(self._tensors.moments([*rest.values()], NORMS, 0.0, None))
            places += rest
            is_scaled += [True] * len(rest)
        self._forget_returned(watched, bool(rest))
        if scale is not None:
            blocks.append(self._tensors.moments([scale], NORMS, 0.0, None))
        mask = None if scale is None else np.asarray(is_scaled, np.bool_)
        return unscaled_norms(self._tensors.to_host(blocks), places, mask, len(held))

    def _forget_returned(self, watched: OptimizerMemory, others: bool) -> None:
        """Note what was dropped of the gradients that backwards have returned, unless the update applies others."""
        watched.own_sums = self._own_sums(watched) if others and watched.returned else None
        if others:
            watched.returned.clear()
        if len(watched.returned) > 1:
            watched.dropped = self._dropped([*watched.returned][:-1])

    def _own_sums(self, watched: OptimizerMemory) -> Callable[[], Array]:
        """Return a function that waits for the sum of each gradient over what the backwards have returned, where the
        program applies other gradients: it adds up by itself. NaN where none was returned."""
        wait = self._tensors.to_host([block for _, block in watched.returned])
        places = {name: place for place, name in enumerate(watched.names)}
        rows = [places.get(name, -1) for names, _ in watched.returned for name in names]

        def sums() -> Array:
            totals, known = np.zeros(len(places) + 1), np.asarray(rows, np.int64)
            np.add.at(totals, known, wait()[:, 0])
            totals[np.setdiff1d(np.arange(len(totals)), known)] = np.nan
            return totals[:-1]

        return sums

    def _clips(self, watched: OptimizerMemory) -> Array | None:
        """Return the factor by which each gradient was clipped after its norm was taken; None if none was."""
        if not watched.factors:
            return None
        clips = np.ones(len(watched.parameters))
        for one in watched.measured:
            for position in one.positions:
                clips[position] = watched.factors.get(position, 1.0)
        return clips

    def _dropped(self, returned: Sequence[tuple[tuple[str, ...], Block]]) -> Callable[[], tuple[str, ...]]:
        """Return a function that waits for the names of the parameters whose gradients are not finite."""
        wait = self._tensors.to_host([block for _, block in returned])
        names = [name for some, _ in returned for name in some]

        def dropped() -> tuple[str, ...]:
            bad = (name for name, row in zip(names, wait(), strict=True) if not math.isfinite(row[1]))
            return tuple(dict.fromkeys(bad))

        return dropped

    def updated(self, optimizer: Optimizer, outcome: Outcome) -> None:
        """Pass the update on, which has ended."""
        update = self._updating.pop(id(optimizer), None)
        if update is None:
            return
        watched, self._cut = update.watched, False
        self._beginning = self._present = None
        looked = watched.rota.after()
        held = self._loop.held(watched.parameters)
        watched.applied.mark(held)
        watched.again = presence(held)
        facts = update.facts._replace(outcome=outcome if update.shown else "unknown")
        ended = ReadUpdate(facts, looked, update.roots, watched.leftover, watched.dropped, watched.own_sums)
        watched.clear()
        self._receive(ended)

    # What belongs to whom.

    def _each(self) -> list[OptimizerMemory]:
        """Return what is remembered of every optimizer, with its parameters as of the last update."""
        if self._present is None:
            self._present = [*map(self._of, self._watch.run.optimizers)]
        return self._present

    def _of(self, optimizer: Optimizer) -> OptimizerMemory:
        """Return what is remembered of an optimizer, with its parameters of now."""
        watched = self._watched.get(id(optimizer))
        if watched is None:
            watched = self._watched[id(optimizer)] = OptimizerMemory(self._loop)
        owned = self._watch.run.framework.hooks.owned(optimizer)
        order, every = [*map(id, owned)], self._watch.parameters.every
        if order != watched.order or every is not watched.every:
            self._renew(watched, optimizer, owned, order, every)
        return watched

    def _renew(
        self,
        watched: OptimizerMemory,
        optimizer: Optimizer,
        owned: Sequence[Parameter],
        order: list[int],
        every: Mapping[int, Any],
    ) -> None:
        """Take other parameters or names; what fails is tried again with the next look."""
        if order != watched.order:
            watched.order = []
            sizes, watched.dtypes = self._loop.sizes(owned), self._loop.dtypes(owned)
            watched.parameters, watched.sizes, watched.rota = [*owned], sizes, Rota(self._loop, owned, sizes)
            watched.identities = frozenset(order)
            watched.some = watched.parameters[:: max(1, len(owned) // SOME)]
            watched.again = np.zeros(len(owned), np.bool_)
            watched.applied, watched.reached = GradientMarks(self._loop), GradientMarks(self._loop)
            watched.clear()
        names = tuple(every[identity].name if identity in every else "" for identity in order)
        if names != watched.names:
            watched.names = names
        watched.groups = self._loop.groups(optimizer)
        watched.every, watched.order, self._outside = every, order, None

    def _strangers(self) -> tuple[str, ...]:
        """Return the parameters that have a gradient and are in no optimizer."""
        if self._outside is None:
            owned = {identity for watched in self._each() for identity in watched.identities}
            every = self._watch.parameters.every
            outside = [(each.name, each.thing) for identity, each in every.items() if identity not in owned]
            self._outside = outside[:MOST_STRANGERS]
        held = self._loop.held([parameter for _, parameter in self._outside])
        return tuple(name for (name, _), gradient in zip(self._outside, held, strict=True) if gradient is not None)

    def _tied(self) -> tuple[tuple[str, ...], ...]:
        """Return the names that stand for one parameter, as of the last search of the models."""
        structure = self._watch.parameters.structure
        if self._ties[0] is not structure:
            models = [model for _, model in self._watch.run.chunks]
            self._ties = structure, tuple(tie for model in models for tie in self._loop.ties(model))
        return self._ties[1]
