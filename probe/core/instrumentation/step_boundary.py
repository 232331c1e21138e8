"""Which optimizers' updates make one training step."""

from __future__ import annotations

from collections.abc import Sequence

from probe.core.backend.protocols import Optimizer


class Turns:
    """A step is one update of each optimizer that takes part. Who does is learned: one that rests is not waited for."""

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self._expected = {id(optimizer) for optimizer in optimizers}
        self._first: int | None = None
        self._taken: set[int] = set()

    def ends_by(self, optimizer: Optimizer) -> bool:
        """Whether an update by ``optimizer`` now belongs to another step: it had its turn, or goes first and others had
        theirs."""
        again, leads = id(optimizer) in self._taken, id(optimizer) == self._first and bool(self._taken)
        if again or leads:
            self._expected = self._taken | {id(optimizer)}
        return again or leads

    def take(self, optimizer: Optimizer) -> bool:
        """Notes the update of ``optimizer``; whether it was the step's last."""
        if self._first is None:
            self._first = id(optimizer)
        self._taken.add(id(optimizer))
        complete = self._expected <= self._taken
        if complete:
            self._expected = set(self._taken)
        return complete

    def taken(self, optimizer: Optimizer) -> bool:
        """Whether ``optimizer`` had its turn in this step."""
        return id(optimizer) in self._taken

    def hand_over(self, optimizer: Optimizer, successor: Optimizer) -> None:
        """``successor`` takes the place of ``optimizer``."""
        old, new = id(optimizer), id(successor)
        self._first = new if self._first == old else self._first
        self._expected, self._taken = ({new if x == old else x for x in y} for y in (self._expected, self._taken))

    def clear(self) -> None:
        """Another step."""
        self._taken.clear()
