"""Optimizers that the sentinel watches: what is remembered of each, with its parameters of now and their names."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import compress
from operator import is_
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from probe.core.backend.protocols import Optimizer, Parameter, TrainingLoop
from probe.core.instrumentation.training_steps import TrainingSteps
from probe.core.sentinel.gradient_marks import GradientMarks
from probe.core.sentinel.graph_survey import GraphSurvey
from probe.core.sentinel.optimizer_memory import SOME, OptimizerMemory
from probe.core.sentinel.rota import Rota

MOST_STRANGERS = 512
"""Parameters in no optimizer that are looked at, at most."""
UPDATES_A_LOOK, SHARE_OF_LOOKS = 8, 0.01
"""Updates after which parameters are searched for that have come or gone, and the part of the time that this takes at
most."""

_latest_ties: WeakKeyDictionary[Any, tuple[tuple[str, ...], ...]] = WeakKeyDictionary()
"""Names that stand for one parameter of a model, as of the latest search in any run."""


class WatchedOptimizers:
    """The optimizers of a session.

    Args:
        watch: the steps of the session.
    """

    def __init__(self, watch: TrainingSteps, loop: TrainingLoop) -> None:
        self._watch, self._loop = watch, loop
        self._watched: dict[int, OptimizerMemory] = {}
        self._present: list[OptimizerMemory] | None = None
        """Memories of the optimizers that there are; None if these have to be looked for."""
        self.world = 1
        """Number of processes, as of the last search."""
        self._updates = 0
        """Updates since parameters were last searched for."""
        self._looked_at = 0.0
        """Time of that search."""
        self._look_seconds = 0.0
        """Seconds that it took."""
        self._ties: tuple[object, tuple[tuple[str, ...], ...]] = (None, ())
        self.earlier_ties: tuple[tuple[str, ...], ...] = ()
        """Names that stood for one parameter as an earlier run of the same models ended."""
        self._outside: tuple[list[str], list[Parameter]] | None = None
        """Names of the parameters that are in no optimizer, and these; None if they have to be looked for."""
        self._shared: tuple[str, ...] = ()
        self._asking: tuple[str, ...] | None = None
        """Parameters in no optimizer that required a gradient at the last update."""

    def number(self, optimizer: Optimizer) -> int | None:
        """Return the number of an optimizer among those of the run; None for others."""
        for number, candidate in enumerate(self._watch.run.optimizers):
            if candidate is optimizer:
                return number
        return None

    def all(self) -> list[OptimizerMemory]:
        """Return what is remembered of every optimizer, with its parameters as of the last update."""
        if self._present is None:
            self._present = [*map(self.of, self._watch.run.optimizers)]
        return self._present

    def forget_present(self) -> None:
        """Look for the optimizers and their parameters again with the next backward: an update has ended."""
        self._present = None

    def hand_over(self, before: Optimizer, optimizer: Optimizer) -> None:
        """Give what is remembered of one optimizer to another, which has taken its place."""
        if (memory := self._watched.pop(id(before), None)) is not None:
            memory.remade, memory.groups = True, self._loop.groups(optimizer)
            self._watched[id(optimizer)], self._present = memory, None

    def updating(self, optimizer: Optimizer) -> OptimizerMemory:
        """Return what is remembered of an optimizer that updates, with its parameters as of the latest backward."""
        memory = None if self._present is None else self._watched.get(id(optimizer))
        return self.of(optimizer) if memory is None else memory

    def of(self, optimizer: Optimizer) -> OptimizerMemory:
        """Return what is remembered of an optimizer, with its parameters of now."""
        memory = self._watched.get(id(optimizer))
        if memory is None:
            memory = self._watched[id(optimizer)] = OptimizerMemory(self._loop, self._watch.run.framework.tensors)
        owned = self._watch.run.framework.hooks.owned(optimizer)
        every, parameters = self._watch.parts.every, memory.parameters
        are_same = len(owned) == len(parameters) and all(map(is_, owned, parameters)) and memory.is_ready
        if not are_same or every is not memory.every:
            self._renew(memory, optimizer, owned, every, are_same)
        return memory

    def _renew(
        self,
        memory: OptimizerMemory,
        optimizer: Optimizer,
        owned: Sequence[Parameter],
        every: Mapping[int, Any],
        are_same: bool,
    ) -> None:
        """Take other parameters or names; what fails is tried again with the next look."""
        order = [*map(id, owned)]
        if not are_same:
            memory.is_ready = False
            sizes, memory.dtypes = self._loop.sizes(owned), self._loop.dtypes(owned)
            memory.parameters, memory.sizes, memory.rota = [*owned], sizes, Rota(self._loop, owned, sizes)
            memory.identities = frozenset(order)
            memory.some = memory.parameters[:: max(1, len(owned) // SOME)]
            memory.again, memory.none = [], np.zeros(len(owned), np.bool_)
            memory.applied, memory.reached = GradientMarks(self._loop), GradientMarks(self._loop)
            memory.clear()
        names = tuple(every[identity].name if identity in every else "" for identity in order)
        if names != memory.names:
            memory.names = names
        memory.groups, self.world = self._loop.groups(optimizer), self._watch.run.framework.groups.world_size()
        memory.every, memory.is_ready, self._outside = every, True, None

    # What belongs to none, and what comes and goes.

    def strangers(self, survey: GraphSurvey) -> tuple[str, ...]:
        """Return the parameters that have a gradient and are in no optimizer; where gradients are computed only of what
        is asked for, those that require one and are in the graph of a loss."""
        if self._outside is None:
            owned = {identity for memory in self.all() for identity in memory.identities}
            every = self._watch.parts.every
            self._shared = self._held_twice(every)
            outside = [parameter for identity, parameter in every.items() if identity not in owned][:MOST_STRANGERS]
            self._outside = [parameter.name for parameter in outside], [parameter.thing for parameter in outside]
        names, parameters = self._outside
        if not parameters:
            return ()
        if not self._loop.keeps(parameters):
            asking = tuple(compress(names, self._loop.requires(parameters)))
            if asking != self._asking:
                if self._asking is not None:
                    survey.again()
                self._asking = asking
            return tuple(name for name in asking if name in survey.recent)
        gradients = self._loop.held(parameters)
        return tuple(name for name, gradient in zip(names, gradients, strict=True) if gradient is not None)

    def _held_twice(self, every: Mapping[int, Any]) -> tuple[str, ...]:
        counts = Counter(identity for memory in self.all() for identity in memory.identities)
        return tuple(parameter.name for identity, parameter in every.items() if counts[identity] > 1)

    def shared(self) -> tuple[str, ...]:
        """Return the parameters that several optimizers hold, as of the last call of :meth:`strangers`."""
        return self._shared

    def tied(self) -> tuple[tuple[str, ...], ...]:
        """Return the names that stand for one parameter, as of the last search of the models."""
        structure = self._watch.parts.structure
        if self._ties[0] is not structure:
            models = [model for _, model in self._watch.run.chunks]
            if self._ties[0] is None:
                self.earlier_ties = tuple(tie for model in models for tie in _latest_ties.get(model, ()))
            for model in models:
                _latest_ties[model] = self._loop.ties(model)
            self._ties = structure, tuple(tie for model in models for tie in _latest_ties[model])
        return self._ties[1]

    def look_again(self) -> None:
        """Search now and then for parameters that have come or gone: sampled steps do, and may be far apart."""
        self._updates += 1
        if self._updates >= UPDATES_A_LOOK:
            passed = time.perf_counter() - self._looked_at
            if self._look_seconds <= SHARE_OF_LOOKS * passed:
                self.look()

    def look(self) -> None:
        """Search for parameters that have come or gone."""
        begun = time.thread_time()
        self._watch.parts.look()
        self.world = self._watch.run.framework.groups.world_size()
        self._look_seconds = time.thread_time() - begun
        self._updates, self._looked_at = 0, time.perf_counter()
        self._present = None
