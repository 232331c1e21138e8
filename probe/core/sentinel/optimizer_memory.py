"""Memory of one optimizer between its updates: the backwards that have reached its parameters, and the gradients that
they have left."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from probe.core.backend.protocols import Block, Parameter, Tensor, TrainingLoop
from probe.core.checks.update_facts import Array, Mask
from probe.core.sentinel.gradient_marks import GradientMarks
from probe.core.sentinel.rota import Rota

SOME = 8
"""Parameters by which a backward is seen to reach an optimizer, at most."""
MOST_RETURNED = 64
"""Backwards whose gradients are remembered until the next update, where programs may drop them."""
MOST_PATTERNS = 64
"""Sets of gradients of one optimizer that are remembered."""


class RunningBackward:
    """Backward that runs.

    Args:
        inputs: identities of what it was asked for.
    """

    def __init__(self, inputs: Collection[int]) -> None:
        self.inputs, self.thread = inputs, threading.get_ident()
        self.root: Callable[[], float] | None = None
        """Function that waits for the value of its root; None if that is no loss."""
        self.scaled = False
        """True if a scaler has multiplied its root."""
        self.shared = False
        """True if one on another thread has run meanwhile."""
        self.before: dict[int, GradientMarks] = {}
        """Marks of some gradients of each optimizer as it began, by the identity of what is remembered of it."""
        self.counted: set[int] = set()
        """Identities of what is remembered of the optimizers that have been updated within it."""


class MeasuredGradients(NamedTuple):
    """Gradients whose norms were taken before they were clipped."""

    positions: Sequence[int]
    identities: Sequence[int]
    references: Sequence[Callable[[], object]] | None
    """Functions to the gradients; None where they do not stay with their parameters."""
    block: Block
    returned: bool = False
    """True if they are as a backward has returned them, so that they may have the factor of a scaler."""

    def places(self, held: Sequence[Tensor | None], origins: Mapping[int, int]) -> list[int]:
        """Return the positions, -1 where another gradient is there now.

        Args:
            origins: identity of what was measured, of the gradient at each position.
        """
        same = [origins.get(n) == identity for n, identity in zip(self.positions, self.identities, strict=True)]
        if self.references is not None:
            refers = (reference() is held[n] for n, reference in zip(self.positions, self.references, strict=True))
            same = [one and other for one, other in zip(same, refers, strict=True)]
        return [n if is_same else -1 for n, is_same in zip(self.positions, same, strict=True)]


class OptimizerMemory:
    """Memory of one optimizer since its last update."""

    def __init__(self, loop: TrainingLoop) -> None:
        self.parameters: Sequence[Parameter] = ()
        self.order: list[int] = []
        """Identities of the parameters."""
        self.every: object = None
        """Names of the models' parameters from which :attr:`names` were taken."""
        self.names: tuple[str, ...] = ()
        self.sizes: tuple[int, ...] = ()
        self.dtypes: tuple[str, ...] = ()
        self.groups: tuple[int, ...] = ()
        self.some: Sequence[Parameter] = ()
        self.identities: frozenset[int] = frozenset()
        self.applied, self.reached = GradientMarks(loop), GradientMarks(loop)
        """Marks of all gradients at the end of the last update, and of some after the last backward."""
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
        self.backwards: list[RunningBackward] = []
        """Backwards that have reached the parameters."""
        self.accumulated = False
        """True if any of them has added to gradients, rather than return them."""
        self.training: bool | None = None
        self.reduced: bool | None = None
        self.world = 1
        self.scaled = False
        self.late = self.clipped_late = False
        """True if the total norm was computed of gradients that were applied before; true if they were then clipped."""
        self.leftover: Callable[[], bool] | None = None
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
        self.factors: dict[int, float] = {}
        """Factor by which the gradient at each position was clipped."""

    def was_cleared(self, some: Sequence[Tensor | None]) -> bool:
        """Return whether what the backwards so far have added is gone: it will not be applied."""
        there = [gradient is not None for gradient in some]
        if not self.accumulated or (self.factors and any(there)):  # clipped since, and therefore written
            return False
        return not any(there) or not self.reached.untouched(some)[there].any()

    def holds_applied(self, held: Sequence[Tensor | None]) -> bool:
        """Return whether the gradients are those that the last update has applied, as it left them."""
        return len(self.applied) == len(held) and bool(self.applied.untouched(held).any())

    def was_rewritten(self, some: Sequence[Tensor | None]) -> bool:
        """Return whether something has written gradients since the latest backward."""
        if not self.backwards or len(some) != len(self.reached):
            return False
        return bool((self.reached.same(some) & ~self.reached.untouched(some)).any())

    def of_thread(self) -> list[RunningBackward]:
        """Return the backwards whose gradients this thread applies: of those that ran at the same time on several
        threads, its own."""
        thread = threading.get_ident()
        if not any(backward.thread == thread for backward in self.backwards):
            return self.backwards
        return [backward for backward in self.backwards if backward.thread == thread or not backward.shared]


def presence(held: Sequence[Tensor | None]) -> Mask:
    """Return which gradients are there."""
    return np.array([gradient is not None for gradient in held], np.bool_)
