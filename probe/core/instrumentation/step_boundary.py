"""The boundary between two steps: the updates that make up a step, and the step as delivered at its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from probe.core.backend.protocols import Optimizer, Tensor, Tensors
from probe.core.instrumentation.context import PendingRows, Run
from probe.core.instrumentation.overhead import Spent
from probe.core.records import Outcome, TextFile, Update


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


class UpdateReading(NamedTuple):
    """Update of a step that has ended, some numbers of which may still be on their way to the host."""

    update: Update = Update()
    rate: Callable[[], float] | None = None
    """Function that waits for the learning rate; None if it is unknown."""
    found: Callable[[], float] | None = None
    """Function that waits for a number that is not 0 if the update was skipped; None if the outcome is known."""


class Updates:
    """The outcomes of the updates, step by step, and the learning rate of the step in progress. Nothing here waits."""

    def __init__(self, tensors: Tensors) -> None:
        self._tensors = tensors
        self._outcomes: set[Outcome] = set()
        self._skips, self._begun = 0, False
        self._rate: Callable[[], float] | None = None
        self._found: Callable[[], float] | None = None

    def updating(self, rate: object) -> None:
        """Keep the learning rate, a number or a tensor, with which the step's first update is made."""
        self._rate = self._rate or self._reading(rate)

    def take(self, outcome: Outcome, found: Tensor | None = None) -> None:
        """Note the outcome of one update of the step.

        Args:
            found: a number on a device that is not 0 if the update was skipped, where only the device knows.
        """
        self._outcomes.add(outcome)
        if outcome == "unknown" and found is not None:
            self._found = self._reading(found)

    def end(self) -> UpdateReading:
        """Return the update of the step, skipped if that of any optimizer was, and begin another."""
        worst: Outcome = next((each for each in _WORST_FIRST if each in self._outcomes), "applied")
        self._skips = self._skips + 1 if worst == "skipped" else 0
        found = self._found if worst == "unknown" else None
        reading = UpdateReading(Update(worst, self._skips, self._begun), self._rate, found)
        self._begun |= worst == "applied"
        self._outcomes, self._rate, self._found = set(), None, None
        return reading

    def _reading(self, value: object) -> Callable[[], float] | None:
        """Return a function to the number, of which a copy is made at once: a scheduler changes tensors in place."""
        number: float | None = None
        if isinstance(value, int | float):
            number = float(value)
        elif self._tensors.is_tensor(value):
            number = self._tensors.number(value)
            if number is None:
                wait = self._tensors.to_host([self._tensors.moments([value], ("sum",), 0.0, None)])
                return lambda: float(wait()[0, 0])
        else:
            return None
        known = float(number)
        return lambda: known


_WORST_FIRST: tuple[Outcome, ...] = ("skipped", "unknown")


class UpdateReader:
    """Reader of the updates of sampled steps, in their order, on the delivery thread."""

    def __init__(self) -> None:
        self._skips, self._begun = 0, False
        """The same as in :class:`Update`, of the updates whose outcome only a device had."""

    def read(self, reading: UpdateReading) -> Update:
        """Return an update with its learning rate and its outcome; wait for the device."""
        update = reading.update if reading.rate is None else reading.update._replace(rate=reading.rate())
        if reading.found is None:
            return update
        skipped, begun = reading.found() != 0, self._begun
        self._skips, self._begun = self._skips + 1 if skipped else 0, begun or not skipped
        return update._replace(outcome="skipped" if skipped else "applied", skips=self._skips, begun=begun)


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
    update: UpdateReading


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
