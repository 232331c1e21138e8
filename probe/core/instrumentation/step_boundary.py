"""The boundary between two steps: the updates that make one, and the step that is handed over at its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from probe.core.backend.protocols import Optimizer
from probe.core.instrumentation.context import PendingRows, Run
from probe.core.instrumentation.overhead import Spent
from probe.core.records import Batch, Outcome, TextFile


class Turns:
    """The updates of a step: one of each optimizer that takes part. Those that take part are learned: an optimizer that
    rests is not waited for."""

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
        """Begins another step."""
        self._taken.clear()


class FinishedStep(NamedTuple):
    """A sampled step that has ended, with moments that may still be on their way to the host."""

    number: int
    time: float
    """Seconds since 1970."""
    pending: tuple[PendingRows, ...]
    """Those of the recorder first."""
    ops: tuple[str, ...]
    spent: Spent
    outcome: Outcome

    def batches(self) -> list[Batch]:
        """Every row; waits for the device."""
        return [batch for rows in self.pending for batch in rows.batches(self.number)]


class StepConsumer(Protocol):
    """Receiver of the steps of a session."""

    @property
    def delivers(self) -> bool:
        """Whether steps that are submitted in this process are processed."""

    @property
    def waits_for_ranks(self) -> bool:
        """Whether a submitted step may still wait for other ranks."""

    @property
    def beside(self) -> float:
        """Seconds of processor time taken so far, beside training."""

    @property
    def on_device(self) -> float:
        """Seconds that a device has taken so far."""

    def submit(self, step: FinishedStep) -> None:
        """Processes ``step`` on another thread."""

    def write(self, file: TextFile) -> None:
        """Writes ``file`` on another thread."""

    def timed(self, seconds: float, own: float) -> None:
        """Counts a step that took ``seconds``, of which ``own`` were the monitor's."""

    def succeed(self, run: Run) -> None:
        """Notes that another optimizer has taken the place of one."""
