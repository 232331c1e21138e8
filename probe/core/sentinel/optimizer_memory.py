"""Memory of one optimizer between its updates: the backwards that have reached its parameters, and the gradients that
they have left."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from probe.core.backend.protocols import Block, Parameter, Tensor, Tensors, TrainingLoop
from probe.core.checks.update_facts import Array, Mask
from probe.core.sentinel.device_numbers import DeviceNumbers, Factor
from probe.core.sentinel.gradient_marks import GradientMarks
from probe.core.sentinel.rota import Rota

SOME = 8
"""Parameters by which a backward is seen to reach an optimizer, at most."""
MOST_RETURNED = 64
"""Backwards whose gradients are remembered until the next update, where programs may drop them."""
UPDATES_SCHEDULED = 3
"""Updates in a row in which a schedule goes on by the same number of steps, if that is its habit."""
MOST_PATTERNS = 64
"""Sets of gradients of one optimizer that are remembered."""


class RunningBackward:
    """Backward that runs.

    Args:
        inputs: identities of what it was asked for.
    """

    def __init__(self, inputs: Collection[int]) -> None:
        self.inputs, self.thread = inputs, threading.get_ident()
        self.made = 0
        """Updates of all optimizers before it."""
        self.root: Callable[[], float] | None = None
        """Function that waits for the value of its root; None if that is no loss."""
        self.scaled = False
        """True if a scaler has multiplied its root."""
        self.shared = False
        """True if one on another thread has run meanwhile."""
        self.before: dict[int, GradientMarks] = {}
        """Marks of some gradients of each optimizer at its beginning, by the identity of the optimizer's memory."""
        self.counted: set[int] = set()
        """Identities of the memories of the optimizers that were updated during it."""


class MeasuredGradients(NamedTuple):
    """Gradients whose norms were taken before they were clipped."""

    positions: Sequence[int]
    identities: Sequence[int]
    references: Sequence[Callable[[], object]] | None
    """Functions to the gradients; None where they do not stay with their parameters."""
    block: Block
    returned: bool = False
    """True if they are as a backward has returned them, so that they may have the factor of a scaler."""

    def places(self, gradients: Sequence[Tensor | None], origins: Sequence[int]) -> list[int]:
        """Return the positions, -1 where another gradient is there now.

        Args:
            origins: identity of what each gradient of ``gradients`` was made of.
        """
        rows = zip(self.positions, self.identities, strict=True)
        places = [n if origins[n] == identity else -1 for n, identity in rows]
        if self.references is None:
            return places
        refers = zip(places, self.references, strict=True)
        return [n if reference() is gradients[n] else -1 for n, reference in refers]


class OptimizerMemory:
    """Memory of one optimizer since its last update."""

    def __init__(self, loop: TrainingLoop, tensors: Tensors) -> None:
        self._tensors = tensors
        self.parameters: Sequence[Parameter] = ()
        self.thread: int | None = None
        """Thread of the last update."""
        self.is_ready = False
        """True if all that follows from the parameters is known."""
        self.every: object = None
        """Names of the models' parameters from which :attr:`names` were taken."""
        self.names: tuple[str, ...] = ()
        self.sizes: tuple[int, ...] = ()
        self.dtypes: tuple[str, ...] = ()
        self.groups: tuple[int, ...] = ()
        self.some: Sequence[Parameter] = ()
        self.identities: frozenset[int] = frozenset()
        self.applied = GradientMarks(loop)
        """Marks of all gradients at the end of the last update."""
        self.reached = GradientMarks(loop)
        """Marks of some gradients after the last backward."""
        self.again: list[bool] = []
        """Gradients that nothing has cleared since the last update; empty if all were."""
        self.none: Mask = np.zeros(0, np.bool_)
        """For each parameter False."""
        self.there = self.none
        """For each parameter whether it had a gradient in the last update."""
        self.present = list[int]()
        """Positions of the parameters that had one."""
        self._pattern = b""
        """The mask ``there`` as bytes, which are quick to compare."""
        self._trainable, self._required = self.none, b""
        self._patterns: set[bytes] = set()
        """Sets of gradients that updates had."""
        self.rota = Rota(loop, (), ())
        self.scheduled: int | None = None
        """Step at which its schedule was at the last update."""
        self.advances = 0, 0
        """Steps by which that goes on in each update, and the number of updates in a row in which it did."""
        self.updates = 0
        """Updates so far."""
        self.made = 0
        """Updates of all optimizers up to the last one of this."""
        self.oddities: Callable[[], Mapping[str, tuple[str, ...]]] | None = None
        """Function that waits for what the latest look for oddities shows."""
        self.clear()

    def advance(self, scheduled: int | None) -> int:
        """Take the step at which the schedule is; return by how many it goes on, in the third update in a row in which
        it does so, and 0 in others."""
        if scheduled is None:
            return 0
        steps, before = scheduled - (scheduled if self.scheduled is None else self.scheduled), self.advances
        self.scheduled, self.advances = scheduled, (steps, before[1] + 1 if steps == before[0] else 1)
        return steps if self.advances[1] == UPDATES_SCHEDULED else 0

    def has_lost(self, gradients: Sequence[Tensor | None]) -> bool:
        """Return whether gradients are missing that the last update had, as never before; note those of this one."""
        pattern = bytes([gradient is not None for gradient in gradients])
        if pattern == self._pattern and len(pattern) == len(self.there):
            return False
        before, self.there, self._pattern = self.there, np.frombuffer(pattern, np.bool_), pattern
        self.present = np.flatnonzero(self.there).tolist()
        if pattern in self._patterns or len(self._patterns) >= MOST_PATTERNS:
            return False
        self._patterns.add(pattern)
        return len(before) == len(pattern) and bool((before & ~self.there).any())

    def trainable(self, requires: Sequence[bool]) -> Mask:
        """Return which parameters require a gradient, the same object as long as they are the same."""
        if (pattern := bytes(requires)) != self._required:
            self._trainable, self._required = np.frombuffer(pattern, np.bool_), pattern
        return self._trainable

    def clear(self) -> None:
        """Begin with the next update."""
        self.backwards: list[RunningBackward] = []
        """Backwards that have reached the parameters."""
        self.at_backward = -1
        """Collectives so far, at the end of the latest backward; -1 where they are not counted."""
        self.discarded = 0
        """Backwards whose gradients were cleared since the last update."""
        self.values: Sequence[int] = ()
        """Versions of some parameters at the latest backward."""
        self.accumulated = False
        """True if any of them has added to gradients, rather than return them."""
        self.training: bool | None = None
        self.reduced: bool | None = None
        self.resting: tuple[str, ...] = ()
        self.scaled = False
        self.late = False
        """True if the total norm was computed after the update, of gradients that it had applied."""
        self.remade = False
        """True if the optimizer has taken the place of one like it."""
        self.late_clips = list[Factor]()
        """Factors by which these gradients were then clipped."""
        self.leftover: Callable[[], bool] | None = None
        self.early_clips = list[Factor]()
        """Factors by which gradients were clipped to which a later backward has added."""
        self.forget_norms()
        self.own_sums: Callable[[], Array] | None = None
        """Function that waits for the sum of each gradient over what the backwards have returned, as of the update that
        runs; None if it applies just that, or if gradients stay with parameters."""
        self.dropped: Callable[[], tuple[str, ...]] = tuple
        """Function that waits for the names of parameters with dropped gradients, as of the update that runs."""
        self.returned: deque[tuple[tuple[str, ...], Block]] = deque(maxlen=MOST_RETURNED)
        """Names and norms of the gradients that each backward has returned, where they do not stay with parameters."""

    def forget_norms(self) -> None:
        """Forget the norms that were taken, since the gradients are others now."""
        self.measured: list[MeasuredGradients] = []
        if not (self.late_clips or self.early_clips):  # else some of them are still waited for
            self.numbers = DeviceNumbers(self._tensors)
            """Numbers that only a device knows."""
        self.at_clip: tuple[int, Sequence[int]] = -1, ()
        """Collectives so far, and versions of some gradients, just before the latest clip; -1 if there was none."""
        self.clips: list[tuple[Sequence[int], Factor]] = []
        """Clips, each with the positions of the gradients and the factor by which they were multiplied."""

    def adds_to_another(self, made: int) -> bool:
        """Return whether an update applies gradients of two backwards, between which another optimizer was updated for
        the only time since the last update of this one.

        Args:
            made: updates of all optimizers so far.
        """
        return made - self.made == 1 and len(self.backwards) == 2 and self.backwards[0].made < self.backwards[1].made

    def is_in_turn(self, made: int, begun: Collection[int]) -> bool:
        """Return whether, since the last update of this optimizer, a backward and an update of another one have come,
        and then a further backward: each optimizer has its own.

        Args:
            made: updates of all optimizers so far.
            begun: that number at the beginnings of backwards.
        """
        return made in begun and any(self.made <= before < made for before in begun)

    def was_cleared(self, some: Sequence[Tensor | None]) -> bool:
        """Return whether what the backwards so far have added is gone: it will not be applied."""
        some_are_there = any(gradient is not None for gradient in some)
        if not self.accumulated or (self.clips and some_are_there):  # clipped since, and therefore written
            return False
        return not some_are_there or True not in self.reached.untouched(some)

    def holds_applied(self, gradients: Sequence[Tensor | None]) -> bool:
        """Return whether the gradients are those that the last update has applied, as it left them."""
        return len(self.applied) == len(gradients) and True in self.applied.untouched(gradients)

    def was_reduced_after_clip(self, collectives: int, versions: Sequence[int]) -> bool:
        """Return whether ranks have talked since the latest clip, and some gradients were written once more than it
        writes them."""
        before, at_clip = self.at_clip
        pairs = zip(at_clip, versions, strict=False)
        return 0 <= before < collectives and len(versions) > 0 and all(new > old + 1 >= 1 for old, new in pairs)

    def was_rewritten(self, some: Sequence[Tensor | None]) -> bool:
        """Return whether something has written gradients since the latest backward."""
        if not self.backwards or len(some) != len(self.reached):
            return False
        return self.reached.same(some) != self.reached.untouched(some)

    def applies_latest(self, some: Sequence[Tensor | None]) -> bool:
        """Return whether the gradients are those that the latest backward has left, but for clipping."""
        if not self.discarded or not self.backwards or len(some) != len(self.reached):
            return False
        same = self.reached.same(some)
        return all(same) and (bool(self.clips) or all(self.reached.untouched(some)))

    def of_thread(self) -> list[RunningBackward]:
        """Return the backwards whose gradients this thread applies. Of backwards that ran at the same time on several
        threads, it applies those that ran on itself."""
        thread = threading.get_ident()
        if not any(backward.thread == thread for backward in self.backwards):
            return self.backwards
        return [backward for backward in self.backwards if backward.thread == thread or not backward.shared]

    def stale(self, gradients: Sequence[Tensor | None]) -> tuple[Mask, Mask]:
        """Return two masks of the gradients of an update: those that are the gradients of the last update with a later
        backward added, and those that are the gradients of the last update, unchanged."""
        if self.backwards:
            if not self.again:
                return self.none, self.none
            same = self.applied.same(gradients)
            return np.array(
                [was_again and is_same for was_again, is_same in zip(self.again, same, strict=True)], np.bool_
            ), self.none
        untouched = self.applied.untouched(gradients) if len(self.applied) else []
        return self.none, np.array(untouched, np.bool_) if True in untouched else self.none
