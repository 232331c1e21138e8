"""The boundary between two steps: the updates that make up a step, and the step as delivered at its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from probe.core.backend.protocols import Optimizer
from probe.core.instrumentation.context import PendingRows, Run
from probe.core.instrumentation.overhead import Spent
from probe.core.records import Outcome, TextFile


class Turns:
    """The updates of a step: one of each optimizer that takes part. Each step shows which optimizers take part: the
    next one does not wait for an optimizer that made no update."""

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self._expected = {id(optimizer) for optimizer in optimizers}
        self._first: int | None = None
        self._taken: set[int] = set()

    def ends_by(self, optimizer: Optimizer) -> bool:
        """True if an update by ``optimizer`` now belongs to the next step: it has already updated in this one, or it is
        the first in each step and others have updated."""
        again, leads = id(optimizer) in self._taken, id(optimizer) == self._first and bool(self._taken)
        if again or leads:
            self._expected = self._taken | {id(optimizer)}
        return again or leads

    def take(self, optimizer: Optimizer) -> bool:
        """Note the update of ``optimizer``; return true if it was the last of the step."""
        if self._first is None:
            self._first = id(optimizer)
        self._taken.add(id(optimizer))
        complete = self._expected <= self._taken
        if complete:
            self._expected = set(self._taken)
        return complete

    def taken(self, optimizer: Optimizer) -> bool:
        """True if ``optimizer`` has updated in this step."""
        return id(optimizer) in self._taken

    def hand_over(self, optimizer: Optimizer, successor: Optimizer) -> None:
        """Put ``successor`` in the place of ``optimizer``."""
        old, new = id(optimizer), id(successor)
        self._first = new if self._first == old else self._first
        self._expected, self._taken = ({new if x == old else x for x in y} for y in (self._expected, self._taken))

    def clear(self) -> None:
        """Begin another step."""
        self._taken.clear()


class FinishedStep(NamedTuple):
    """A sampled step that has ended, with moments that may still be on their way to the host."""

    number: int
    time: float
    """Seconds since 1970."""
    pending: tuple[PendingRows, ...]
    """Rows of each collector, those of the recorder first."""
    ops: tuple[str, ...]
    spent: Spent
    outcome: Outcome


class StepConsumer(Protocol):
    """Receiver of the steps of a session."""

    @property
    def delivers(self) -> bool:
        """True if steps that are submitted in this process are processed."""

    @property
    def waits_for_ranks(self) -> bool:
        """True if a submitted step may still wait for other ranks."""

    @property
    def beside(self) -> float:
        """Seconds of processor time spent so far on other threads than training."""

    @property
    def on_device(self) -> float:
        """Seconds spent so far on the device."""

    def submit(self, step: FinishedStep) -> None:
        """Process ``step`` on another thread."""

    def write(self, file: TextFile) -> None:
        """Write ``file`` on another thread."""

    def timed(self, seconds: float, own: float) -> None:
        """Count a step that took ``seconds``, of which ``own`` were the monitor's."""

    def succeed(self, run: Run) -> None:
        """Note that another optimizer has replaced one of ``run``."""
