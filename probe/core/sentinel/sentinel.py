"""The sentinel: at every step, sampled or not, it takes the loss, the norms of the gradients before they are clipped
and the facts of the loop, and passes them on for judging. It waits for no device and places no hook on the model."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple, Protocol

import numpy as np

from probe.core.backend.protocols import Block, Optimizer, Parameter, Remove, Tensor, TrainingLoop
from probe.core.checks.beginning import Beginning
from probe.core.checks.check import JudgedUpdate
from probe.core.checks.update_facts import Array, Gradients, Mask, UpdateFacts
from probe.core.door import attempt
from probe.core.faults import Faults
from probe.core.instrumentation.context import Run
from probe.core.instrumentation.parameters import Parameters
from probe.core.records import Outcome
from probe.core.sentinel.gradient_marks import GradientMarks
from probe.core.sentinel.rota import Rota, RotaReading

NORMS = ("sum", "sumsq")
"""Moments of a gradient that are taken at every step."""
SOME = 8
"""Parameters by which a backward is seen to reach an optimizer, at most."""
MOST_STRANGERS = 512
"""Parameters in no optimizer that are looked at, at most."""
MOST_WALKS = 10
"""Incidents of a run of which the graph is walked."""
UPDATES_A_LOOK, SHARE_OF_LOOKS = 4, 0.01
"""Updates after which parameters are searched for that have come or gone, and the part of the time that this takes at
most."""
MOST_PATTERNS = 64
"""Sets of gradients of one optimizer that are remembered."""


class SeenSession(Protocol):
    """Session, as far as the sentinel reads it."""

    @property
    def run(self) -> Run:
        """The run in progress."""

    @property
    def parameters(self) -> Parameters:
        """The parameters of the models."""


class ReadUpdate(NamedTuple):
    """An update that has ended, whose numbers may still be on their way to the host."""

    facts: UpdateFacts
    looked: RotaReading | None
    roots: tuple[Callable[[], float], ...]
    """Functions that wait for the value of each root."""
    leftover: Callable[[], bool] | None = None
    """Function that waits for whether gradients that nothing was seen to clear had numbers before the backward; None if
    each was seen to be cleared."""

    def judged(self) -> JudgedUpdate:
        """Return the update with its numbers; wait for the device."""
        facts = self.facts
        gradients = facts.gradients.read() if facts.gradients.read is not None else np.empty((0, 2))
        loss = math.fsum(values) if all(map(math.isfinite, values := self._roots())) else sum(values)
        if self.leftover is not None and not self.leftover():
            facts = facts._replace(gradients=facts.gradients._replace(again=np.zeros_like(facts.gradients.again)))
        facts = facts._replace(
            values=None if self.looked is None else self.looked.values(),
            loss=loss if values else math.nan,
            loss_seen=bool(values),
        )
        return JudgedUpdate(facts, gradients)

    def _roots(self) -> list[float]:
        return [root() for root in self.roots]


class _Watched:
    """Memory of one optimizer since its last update."""

    def __init__(self, loop: TrainingLoop) -> None:
        self.parameters: Sequence[Parameter] = ()
        self.ends: tuple[int, ...] = (0,)
        """Number of the parameters, and the identities of the first and the last."""
        self.every: object = None
        """Names of the models' parameters from which :attr:`names` were taken."""
        self.names: tuple[str, ...] = ()
        self.sizes: tuple[int, ...] = ()
        self.dtypes: tuple[str, ...] = ()
        self.groups: tuple[int, ...] = ()
        self.some: Sequence[Parameter] = ()
        self.identities: frozenset[int] = frozenset()
        self.applied, self.reached = GradientMarks(loop), GradientMarks(loop)
        """Marks of all gradients at the end of the last update, and of some at the last backward."""
        self.again: Mask = np.zeros(0, np.bool_)
        """Gradients that nothing has cleared since the last update."""
        self.there: Mask = np.zeros(0, np.bool_)
        """Gradients of the last update."""
        self.patterns: set[bytes] = set()
        """Sets of gradients that updates had."""
        self.rota = Rota(loop, (), ())
        self.clear()

    def has_lost(self, there: Mask) -> bool:
        """Return whether gradients are missing that the last update had, as never before; note those of this one."""
        lost = len(there) == len(self.there) and bool((self.there & ~there).any())
        self.there, pattern = there, there.tobytes()
        new = pattern not in self.patterns
        if new and len(self.patterns) < MOST_PATTERNS:
            self.patterns.add(pattern)
            return lost
        return False

    def clear(self) -> None:
        """Begin with the next update."""
        self.backwards = 0
        self.asked = False
        """True if the backward that runs was asked for gradients of these parameters."""
        self.training: bool | None = None
        self.reduced: bool | None = None
        self.scaled, self.clip = False, 1.0
        self.roots: list[Callable[[], float]] = []
        self.measured: tuple[Sequence[Tensor], Block] | None = None
        self.late, self.clipped_late = False, False
        """True if the total norm was computed of gradients that were applied before; true if they were then clipped."""
        self.leftover: Callable[[], bool] | None = None

    def was_cleared(self, some: Sequence[Tensor | None]) -> bool:
        """Return whether what the backwards so far have added is gone: it will not be applied."""
        there = [gradient is not None for gradient in some]
        return not any(there) or not self.reached.untouched(some)[there].any()

    def holds_applied(self, held: Sequence[Tensor | None]) -> bool:
        """Return whether the gradients are those that the last update has applied, as it left them."""
        return len(self.applied) == len(held) and bool(self.applied.untouched(held).any())

    def was_rewritten(self, some: Sequence[Tensor | None]) -> bool:
        """Return whether something has written gradients since the latest backward."""
        if not self.backwards or len(some) != len(self.reached):
            return False
        return bool((self.reached.same(some) & ~self.reached.untouched(some)).any())


class Sentinel:
    """Listener to the updates of a session, and to the backwards and total norms of the process.

    Args:
        watch: the session.
        receive: is called with each update that has ended.
    """

    def __init__(self, watch: SeenSession, loop: TrainingLoop, receive: Callable[[ReadUpdate], object]) -> None:
        self._watch, self._loop, self._receive = watch, loop, receive
        self._tensors = watch.run.framework.tensors
        self._watched: dict[int, _Watched] = {}
        self._root: Callable[[], float] | None = None
        """Value of the root of the backward that runs."""
        self._present: list[_Watched] | None = None
        """All that is watched; None if it has to be looked for."""
        self._cut = False
        """True if a checkpoint cut the graph since the last update."""
        self._beginning: Beginning | None = None
        """Beginning of the values that are not finite, of a root since the last update."""
        self._tracing, self._walks = True, 0
        """False while an incident lasts; number of incidents whose graph was walked."""
        self._updating: tuple[UpdateFacts, _Watched] | None = None
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

    # Backwards.

    def began(self, root: Tensor | None, inputs: Collection[int]) -> None:
        """Take the value of the root of a backward that begins, and look at what it will add to."""
        self._root = None if root is None else self._value(root)
        if root is not None and (number := self._tensors.number(root)) is not None:
            self._trace(root, number)
        for watched in self._each():
            self._look_before(watched, inputs)

    def _trace(self, root: Tensor, value: float) -> None:
        """Look for the beginning of a value that is not finite, once an incident."""
        if math.isfinite(value):
            self._tracing = True
        elif self._tracing and self._walks < MOST_WALKS:
            self._tracing, self._walks = False, self._walks + 1
            names = {identity: watched.name for identity, watched in self._watch.parameters.every.items()}
            self._beginning = attempt(self.faults, "graph walk", self._loop.first_not_finite, root, names)

    def _value(self, root: Tensor) -> Callable[[], float]:
        """Return a function to the value of a root, a copy of which is made at once, without a scaler's factor."""
        scale = self._loop.scale_of(root)
        value, factor = self._number(root), 1.0 if scale is None else self._number(scale)
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

    def _look_before(self, watched: _Watched, inputs: Collection[int]) -> None:
        """Note which gradients were cleared, and which the backward will find."""
        some = self._loop.held(watched.some)
        if watched.backwards and watched.was_cleared(some):
            watched.backwards, watched.roots = 0, []
        watched.reached.mark(some)
        watched.asked = bool(inputs) and not watched.identities.isdisjoint(inputs)
        if watched.again.any():
            watched.again &= watched.applied.untouched(self._loop.held(watched.parameters))
            if watched.leftover is None and watched.again.any():
                watched.leftover = self._leftover(watched)

    def _leftover(self, watched: _Watched) -> Callable[[], bool]:
        """Return a function that waits for whether gradients have numbers that no operation was seen to write: programs
        clear them past the framework, too (``grad.data.zero_()``)."""
        held = self._loop.held(watched.parameters)
        stale = [gradient for gradient, again in zip(held, watched.again, strict=True) if again and gradient is not None]
        wait = self._tensors.to_host([self._tensors.moments(stale[:: max(1, len(stale) // SOME)], NORMS, 0.0, None)])
        return lambda: bool((wait() != 0).any())

    def ended_backward(self) -> None:
        """Note whose parameters the backward has reached."""
        root, self._root = self._root, None
        for watched in self._each():
            some = self._loop.held(watched.some)
            there = [gradient is not None for gradient in some]
            reached = any(there) and not watched.reached.untouched(some)[there].all()
            if not (reached or watched.asked):
                continue
            watched.reached.mark(some)
            if watched.again.any():
                watched.applied.mark(self._loop.held(watched.parameters))
            watched.backwards += 1
            if root is not None:
                watched.roots.append(root)
            models = [model for _, model in self._watch.run.chunks]
            watched.training, watched.reduced = self._loop.training(models), self._loop.reduces(models)

    def cut(self) -> None:
        """Note a checkpoint that no backward will reach."""
        self._cut = True

    # Total norms.

    def measured(self, gradients: Sequence[Tensor]) -> None:
        """Take the norms of gradients that are about to be clipped."""
        for watched, optimizer in zip(self._each(), self._watch.run.optimizers, strict=False):
            held = [gradient for gradient in self._loop.held(watched.parameters) if gradient is not None]
            if not held or len(held) > len(gradients):
                continue
            if {id(gradient) for gradient in held} <= {id(gradient) for gradient in gradients}:
                scale = self._watch.run.framework.hooks.held_scale(optimizer)
                watched.scaled = scale is not None and self._number(scale) != 1.0
                watched.late = not watched.backwards and watched.holds_applied(self._loop.held(watched.parameters))
                if not watched.scaled and not watched.late:
                    watched.measured = held, self._tensors.moments(held, NORMS, 0.0, None)

    def clipped(self, factor: float) -> None:
        """Note the factor by which gradients are clipped."""
        for watched in self._each():
            if watched.late:
                watched.clipped_late, watched.late = factor < 1, False
            elif watched.measured is not None or watched.scaled:
                watched.clip *= factor

    # Updates.

    def updating(self, optimizer: Optimizer, scale: Tensor | None) -> None:
        """Look at the gradients that an update is about to apply."""
        run = self._watch.run
        number = next((n for n, one in enumerate(run.optimizers) if one is optimizer), None)
        if number is None:
            return
        self._look_again()
        watched = self._of(optimizer)
        held = self._loop.held(watched.parameters)
        if watched.has_lost(_there(held)):
            self._look()
            watched = self._of(optimizer)
        gradients = self._gradients(watched, held, scale)
        watched.rota.before()
        facts = UpdateFacts(
            step=run.clock.step,
            optimizer=number,
            names=watched.names,
            outcome="unknown",
            rates=self._loop.rates(optimizer),
            gradients=gradients,
            values=None,
            backwards=watched.backwards,
            training=watched.training,
            scaled=watched.scaled,
            reduced=watched.reduced,
            around=False,
            clip=watched.clip,
            strangers=self._strangers(),
            replaced=self._watch.parameters.replaced,
            trainable=np.asarray(self._loop.requires(watched.parameters), np.bool_),
            state_steps=self._loop.counted(optimizer, watched.parameters),
            ties=self._tied(),
            dtypes={},
            sizes=watched.sizes,
            groups=watched.groups,
            parameter_dtypes=watched.dtypes,
            cut=self._cut,
            beginning=self._beginning,
            clipped_late=watched.clipped_late,
            rewritten=watched.was_rewritten(self._loop.held(watched.some)),
        )
        self._updating = facts, watched

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

    def _gradients(self, watched: _Watched, held: Sequence[Tensor | None], scale: Tensor | None) -> Gradients:
        there = _there(held)
        if len(watched.applied):
            again = watched.again & watched.applied.same(held)
            untouched = watched.applied.untouched(held) if not watched.backwards else np.zeros_like(there)
        else:
            again = untouched = np.zeros_like(there)
        return Gradients(there, again, untouched, self._read(watched, held, there, scale))

    def _read(
        self, watched: _Watched, held: Sequence[Tensor | None], there: Mask, scale: Tensor | None
    ) -> Callable[[], Array] | None:
        present = [gradient for gradient in held if gradient is not None]
        if not present:
            return None
        measured = watched.measured
        if measured is not None and [*map(id, measured[0])] == [*map(id, present)]:
            block, factor = measured[1], None
        else:
            block, factor = self._tensors.moments(present, NORMS, 0.0, None), scale
        blocks = [block] if factor is None else [block, self._tensors.moments([factor], NORMS, 0.0, None)]
        wait = self._tensors.to_host(blocks)

        def read() -> Array:
            rows = wait()
            rows, unit = (rows, 1.0) if factor is None else (rows[:-1], rows[-1, 0])
            whole = np.full((len(there), 2), np.nan)
            whole[there] = np.column_stack((np.sqrt(rows[:, 1]), rows[:, 0])) / unit
            return whole

        return read

    def updated(self, _: Optimizer, outcome: Outcome) -> None:
        """Pass the update on, which has ended."""
        if self._updating is None:
            return
        (facts, watched), self._updating, self._cut = self._updating, None, False
        self._beginning = self._present = None
        looked = watched.rota.after()
        held = self._loop.held(watched.parameters)
        watched.applied.mark(held)
        watched.again = _there(held)
        update = ReadUpdate(facts._replace(outcome=outcome), looked, tuple(watched.roots), watched.leftover)
        watched.clear()
        self._receive(update)

    # What belongs to whom.

    def _each(self) -> list[_Watched]:
        """Return what is remembered of every optimizer, with its parameters as of the last update."""
        if self._present is None:
            self._present = [*map(self._of, self._watch.run.optimizers)]
        return self._present

    def _of(self, optimizer: Optimizer) -> _Watched:
        """Return what is remembered of an optimizer, with its parameters of now."""
        watched = self._watched.get(id(optimizer))
        if watched is None:
            watched = self._watched[id(optimizer)] = _Watched(self._loop)
        owned = self._watch.run.framework.hooks.owned(optimizer)
        ends = (len(owned), id(owned[0]), id(owned[-1])) if owned else (0,)
        every = self._watch.parameters.every
        if ends != watched.ends or every is not watched.every:
            self._renew(watched, owned, ends, every)
            watched.groups = self._loop.groups(optimizer)
        return watched

    def _renew(
        self, watched: _Watched, owned: Sequence[Parameter], ends: tuple[int, ...], every: Mapping[int, Any]
    ) -> None:
        others = ends != watched.ends or [*map(id, owned)] != [*map(id, watched.parameters)]
        names = tuple(every[id(each)].name if id(each) in every else "" for each in owned)
        watched.every, watched.ends, self._outside = every, ends, None
        if names != watched.names:
            watched.names = names
        if others:
            watched.parameters, watched.sizes = [*owned], self._loop.sizes(owned)
            watched.dtypes = self._loop.dtypes(owned)
            watched.identities = frozenset(map(id, owned))
            watched.some = watched.parameters[:: max(1, len(owned) // SOME)]
            watched.again = np.zeros(len(owned), np.bool_)
            watched.applied, watched.reached = GradientMarks(self._loop), GradientMarks(self._loop)
            watched.rota = Rota(self._loop, watched.parameters, watched.sizes)
            watched.clear()

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


def _there(held: Sequence[Tensor | None]) -> Mask:
    return np.fromiter((gradient is not None for gradient in held), np.bool_, len(held))
