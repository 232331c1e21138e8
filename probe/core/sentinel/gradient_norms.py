"""Norms and sums of the gradients of an optimizer: taken before they are clipped, and at the update."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from probe.core.backend.protocols import Block, Optimizer, Shard, Tensor, TrainingLoop
from probe.core.checks.update_facts import Array, Gradients
from probe.core.door import attempt
from probe.core.instrumentation.context import Run
from probe.core.sentinel.optimizer_memory import MeasuredGradients, OptimizerMemory
from probe.core.sentinel.read_update import unscaled_norms

NORMS = ("sum", "sumsq")
"""Moments of a gradient that are taken at every step."""


class GradientNorms:
    """Reader of the norms of gradients, which waits for no device."""

    def __init__(self, loop: TrainingLoop, run: Run) -> None:
        self._loop, self._run = loop, run
        self._tensors, self._hooks = run.framework.tensors, run.framework.hooks

    def _norms(self, gradients: Sequence[Tensor]) -> Block:
        return self._tensors.moments(gradients, NORMS, 0.0, None)

    def have_numbers(self, gradients: Sequence[Tensor]) -> Callable[[], bool]:
        """Return a function that waits for whether any of some gradients is not exactly zero."""
        wait = self._tensors.to_host([self._norms(gradients)])
        return lambda: bool((wait() != 0).any())

    def take_returned(self, memory: OptimizerMemory) -> None:
        """Take the norms of the gradients that a backward returns: the program may drop them, so that no update shows
        them."""
        all_gradients = self._loop.held(memory.parameters)
        positions = [n for n, gradient in enumerate(all_gradients) if gradient is not None]
        if not positions:
            return
        gradients = [all_gradients[n] for n in positions]
        block = self._norms(gradients)
        memory.measured.append(MeasuredGradients(positions, [*map(id, gradients)], None, block, returned=True))
        memory.returned.append((tuple(memory.names[n] for n in positions), block))

    def measure(
        self,
        memory: OptimizerMemory,
        optimizer: Optimizer,
        all_gradients: Sequence[Tensor | None],
        positions: Sequence[int],
    ) -> None:
        """Take the norms of those gradients that are about to be clipped, and have not been taken."""
        memory.late = not memory.backwards and memory.holds_applied(all_gradients)
        if memory.late:
            return
        scale = self._hooks.held_scale(optimizer)
        # a factor that only a device knows is hardly 1
        memory.scaled = scale is not None and self._tensors.number(scale) != 1.0
        if memory.scaled:
            return
        if memory.measured:
            identities = [*map(id, all_gradients)]
            measured_positions = {
                n for measurement in memory.measured for n in measurement.places(all_gradients, identities)
            }
            positions = [n for n in positions if n not in measured_positions]
        gradients = [gradient for n in positions if (gradient := all_gradients[n]) is not None]
        if not gradients:
            return
        reference = self._loop.reference if self._loop.keeps(memory.parameters) else None
        references = None if reference is None else [reference(gradient) for gradient in gradients]
        block = self._norms(gradients)
        memory.measured.append(MeasuredGradients(positions, [*map(id, gradients)], references, block))

    def read(
        self, memory: OptimizerMemory, all_gradients: Sequence[Tensor | None], scale: Tensor | None
    ) -> Callable[[], Array] | None:
        """Return a function that waits for the norms and sums, those from before a clip where they were taken; None if
        there is no gradient."""
        rest = memory.present
        if not rest:
            return None
        if scale is not None and memory.returned:  # the backward has returned them with its factor
            memory.returned.clear()
            memory.forget_norms()
        blocks, places, is_scaled = list[Block](), list[int](), list[bool]()
        if memory.measured:
            identities = self._origins(all_gradients, rest)
            for measurement in memory.measured:
                blocks.append(measurement.block)
                places += measurement.places(all_gradients, identities)
                is_scaled += [measurement.returned] * (0 if scale is None else len(measurement.positions))
            rest = [] if places == rest else sorted({*rest}.difference(places))
        if rest:
            blocks.append(self._norms([gradient for n in rest if (gradient := all_gradients[n]) is not None]))
            places += rest
            is_scaled += [True] * len(rest)
        self._forget_returned(memory, bool(rest))
        mask = None if scale is None else np.asarray(is_scaled, np.bool_)
        return unscaled_norms(self._to_host(memory, blocks, len(places), scale), places, mask, len(all_gradients))

    def _to_host(
        self, memory: OptimizerMemory, blocks: list[Block], number: int, scale: Tensor | None
    ) -> Callable[[], Array]:
        """Start one copy of the rows of gradients, then of other numbers that only a device knows, then of a scale;
        return a function that waits for the first and the last.

        Args:
            number: number of rows of gradients.
        """
        others = memory.numbers.blocks
        more = [] if scale is None else [self._norms([scale])]
        wait = self._tensors.to_host([*blocks, *others, *more])
        if not others:
            return wait
        end = number + len(others)
        memory.numbers.arrive(lambda: wait()[number:end])
        return lambda: np.delete(wait(), slice(number, end), axis=0)

    def elsewhere(self, memory: OptimizerMemory, optimizer: Optimizer, scale: Tensor | None) -> Gradients:
        """Return the gradients that an engine keeps, of a shard those of this rank's part."""
        gradient_of = self._hooks.gradients_of(optimizer, self._run.main_grad)
        parts = list[Tensor]()
        present, places = np.zeros(len(memory.parameters), np.bool_), list[int]()
        for place, parameter in enumerate(memory.parameters):
            value = attempt(self._run.faults, "gradient norms", gradient_of, parameter)
            tensor = value.tensor if isinstance(value, Shard) else value
            if tensor is not None and 0 not in self._tensors.describe(tensor)[0]:
                present[place] = True
                places.append(place)
                parts.append(tensor)
        if not places:
            return Gradients(present, memory.none, memory.none, None)
        blocks = [self._norms(parts)]
        mask = None if scale is None else np.ones(len(places), np.bool_)
        wait = self._to_host(memory, blocks, len(places), scale)
        read = unscaled_norms(wait, places, mask, len(memory.parameters))
        return Gradients(present, memory.none, memory.none, read)

    def _origins(self, all_gradients: Sequence[Tensor | None], present: Sequence[int]) -> list[int]:
        """Return the identity of what a clip has made each gradient of; 0 where there is none."""
        origins = self._loop.origins([gradient for gradient in all_gradients if gradient is not None])
        if len(present) == len(all_gradients):
            return [*origins]
        identities = [0] * len(all_gradients)
        for position, identity in zip(present, origins, strict=True):
            identities[position] = identity
        return identities

    def _forget_returned(self, memory: OptimizerMemory, others: bool) -> None:
        """Note what was dropped of the gradients that backwards have returned, unless the update applies others."""
        memory.own_sums = self._own_sums(memory) if others and memory.returned else None
        if others:
            memory.returned.clear()
        if len(memory.returned) > 1:
            memory.dropped = self._dropped([*memory.returned][:-1])

    def _own_sums(self, memory: OptimizerMemory) -> Callable[[], Array]:
        """Return a function that waits for the sum of each gradient over what the backwards have returned, where the
        program applies other gradients: it adds up by itself. NaN where none was returned."""
        wait = self._tensors.to_host([block for _, block in memory.returned])
        places = {name: place for place, name in enumerate(memory.names)}
        rows = [places.get(name, -1) for names, _ in memory.returned for name in names]

        def sums() -> Array:
            totals, places_of_rows = np.zeros(len(places) + 1), np.asarray(rows, np.int64)
            np.add.at(totals, places_of_rows, wait()[:, 0])
            totals[np.setdiff1d(np.arange(len(totals)), places_of_rows)] = np.nan
            return totals[:-1]

        return sums

    def _dropped(self, returned: Sequence[tuple[tuple[str, ...], Block]]) -> Callable[[], tuple[str, ...]]:
        """Return a function that waits for the names of the parameters whose gradients are not finite."""
        wait = self._tensors.to_host([block for _, block in returned])
        names = [name for some, _ in returned for name in some]

        def dropped() -> tuple[str, ...]:
            bad = (name for name, row in zip(names, wait(), strict=True) if not math.isfinite(row[1]))
            return tuple(dict.fromkeys(bad))

        return dropped
