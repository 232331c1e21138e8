"""The boundary between two steps: the updates that make up a step, and the step as delivered at its end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from math import nan
from typing import NamedTuple, Protocol

from probe.core.backend.protocols import Optimizer, Tensor, Tensors
from probe.core.instrumentation.context import PendingRows, Run
from probe.core.instrumentation.overhead import Spent
from probe.core.records import Outcome, TextFile, Update

SEARCH = 3
"""Evaluations of a closure in one update that show a search; SAM and its like make two, and then move."""
LEAST = 3
"""Operations in a graph from which on they are taken for a forward: a layer and its loss make as many, and a loss that
is averaged or multiplied after the update fewer."""
_WORST_FIRST: tuple[Outcome, ...] = ("skipped", "unknown")


EndedUpdate = Update | Callable[[], Update]
"""Update of a step that has ended, or a function that waits for those of its numbers that are still on their way to the
host: it is called in the order of the steps, on the delivery thread."""


class StepBoundary:
    """The boundary between two steps: the updates that end a step, one of each optimizer that takes part, and the
    forward that begins the next. Each step shows which optimizers take part: the next one does not wait for an
    optimizer that made no update. Nothing here waits for a device.

    Args:
        optimizers: those that are watched.
        graph_size: see :meth:`probe.core.backend.protocols.Hooks.graph_size`.
    """

    def __init__(self, tensors: Tensors, optimizers: Sequence[Optimizer], graph_size: Callable[[], int | None]) -> None:
        self._tensors, self._graph_size = tensors, graph_size
        self._expected = {id(optimizer) for optimizer in optimizers}
        self._first: int | None = None
        self.updated: set[int] = set()
        """Identities of the optimizers that have updated in this step; cleared when another begins."""
        self._outcomes: set[Outcome] = set()
        self._skips = 0
        """Number of steps in a row whose update was skipped."""
        self._begun = False
        """True once an update was applied."""
        self._on_device = 0, False
        """The same two, of the updates whose outcome only a device had."""
        self.rate: float | Callable[[], float] | None = None
        """The learning rate with which the first update of the step in progress is made, or a function that waits for
        it; None if it is unknown."""
        self._found_inf: Callable[[], float] | None = None
        """Function that waits for the number that shows whether the update was skipped; None if no device has it."""
        self._searching: set[int] = set()
        """Identities of optimizers that search."""
        self._evaluations = 1
        """Evaluations of the closure in the update in progress."""
        self.any_searched = False
        """True once an update has evaluated its closure again."""
        self.forward_noted = False
        """True once a hook has seen a forward in training since the last step ended."""
        self.await_forward(listening=False)

    # The step that an update belongs to.

    def ends_by(self, optimizer: Optimizer) -> bool:
        """Return whether an update by ``optimizer``, which is about to begin, belongs to the next step.

        It does in two cases: this optimizer has updated in this step already; or each step begins with its update, and
        other optimizers have updated in this one.
        """
        again, leads = id(optimizer) in self.updated, id(optimizer) == self._first and bool(self.updated)
        if again or leads:
            self._expected = self.updated | {id(optimizer)}
        return again or leads

    def take(self, optimizer: Optimizer) -> bool:
        """Note the update of ``optimizer``; return true if it was the last of the step."""
        if self._first is None:
            self._first = id(optimizer)
        self.updated.add(id(optimizer))
        complete = self._expected <= self.updated
        if complete:
            self._expected = set(self.updated)
        return complete

    def hand_over(self, optimizer: Optimizer, successor: Optimizer) -> None:
        """Put ``successor`` in the place of ``optimizer``."""
        old, new = id(optimizer), id(successor)
        self._first = new if self._first == old else self._first
        self._expected, self.updated = ({new if x == old else x for x in y} for y in (self._expected, self.updated))

    # Its outcome and learning rate.

    def note_rate(self, rate: object) -> None:
        """Keep the learning rate, a number or a tensor."""
        self.rate = self._reading(rate)

    def note_outcome(self, outcome: Outcome, found_inf: Tensor | None = None) -> None:
        """Note the outcome of one update of the step that was not simply applied.

        Args:
            found_inf: a number on a device that is not 0 if the update was skipped, where only the device knows.
        """
        self._outcomes.add(outcome)
        if outcome == "unknown" and found_inf is not None:
            number = self._reading(found_inf)
            self._found_inf = (lambda: number) if isinstance(number, float) else number

    def end(self) -> tuple[Outcome, EndedUpdate]:
        """Return the update of the step, skipped if that of any optimizer was, and begin another."""
        worst: Outcome = "applied"
        if self._outcomes:
            worst = next((outcome for outcome in _WORST_FIRST if outcome in self._outcomes), worst)
        self._skips = self._skips + 1 if worst == "skipped" else 0
        found_inf = self._found_inf if worst == "unknown" else None
        rate, wait = (self.rate, None) if isinstance(self.rate, float) else (nan, self.rate)
        update = Update(worst, self._skips, self._begun, rate)
        self._begun |= worst == "applied"
        self._outcomes, self.rate, self._found_inf = set(), None, None
        return worst, update if wait is None and found_inf is None else lambda: self._read(update, wait, found_inf)

    def _reading(self, value: object) -> float | Callable[[], float] | None:
        """Return the number, or a function that waits for it; None if there is none. A copy is made at once: a
        scheduler changes tensors in place."""
        if isinstance(value, int | float):
            return float(value)
        if not self._tensors.is_tensor(value):
            return None
        if (number := self._tensors.number(value)) is not None:
            return float(number)
        wait = self._tensors.to_host([self._tensors.moments([value], ("sum",), 0.0, None)])
        return lambda: float(wait()[0, 0])

    def _read(self, update: Update, rate: Callable[[], float] | None, found_inf: Callable[[], float] | None) -> Update:
        """Return ``update`` with its learning rate, and its outcome where a device has it: ``found_inf`` returns a
        number that is not 0 if the update was skipped."""
        if rate is not None:
            update = update._replace(rate=rate())
        if found_inf is None:
            return update
        skipped, (skips, begun) = found_inf() != 0, self._on_device
        self._on_device = (skips + 1 if skipped else 0), begun or not skipped
        return update._replace(outcome="skipped" if skipped else "applied", skips=self._on_device[0], begun=begun)

    # Optimizers that search by evaluating a closure several times, such as LBFGS. Their distance is their own decision:
    # a line search without success, or a tolerance, ends an update before anything has moved.

    def evaluated(self) -> None:
        """Note that the update in progress evaluates its closure again."""
        self.any_searched = True
        self._evaluations += 1

    def searches(self, optimizer: Optimizer) -> bool:
        """Note that an update has ended; return whether its optimizer searches."""
        if self._evaluations >= SEARCH:
            self._searching.add(id(optimizer))
        self._evaluations = 1
        return id(optimizer) in self._searching

    # The first forward of the next step: a number that is logged before it belongs to the step that has ended. Hooks
    # show it in steps that have them, else operations that have become part of a graph. Used on the training thread.

    def await_forward(self, listening: bool) -> None:
        """Begin the next step.

        Args:
            listening: whether hooks see its forwards.
        """
        self._size, self._thread = self._graph_size(), threading.get_ident()
        self.forward_noted, self._listening = False, listening

    @property
    def operations(self) -> int | None:
        """Operations that have become part of a graph since the last step ended; None if nothing shows that."""
        size = self._graph_size() if self._thread == threading.get_ident() else None
        return None if size is None or self._size is None else size - self._size

    @property
    def forward_begun(self) -> bool | None:
        """True if a forward in training has begun since the last step ended; None if nothing shows that."""
        if self.forward_noted:
            return True
        if (operations := self.operations) is None:
            return False if self._listening else None
        return operations >= LEAST


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
    update: EndedUpdate


class StepConsumer(Protocol):
    """Receiver of the steps of a session."""

    @property
    def waits_for_ranks(self) -> bool:
        """True if a submitted step may still wait for other ranks."""

    def submit(self, step: FinishedStep) -> None:
        """Process ``step`` on another thread."""

    def write(self, file: TextFile) -> None:
        """Write ``file`` on another thread."""

    def succeed(self, run: Run) -> None:
        """Note that another optimizer has replaced one of ``run``."""


class UpdateListener(Protocol):
    """Listener to every update of the watched optimizers, sampled or not."""

    def updating(self, optimizer: Optimizer, scale: Tensor | None) -> None:
        """Receive an optimizer whose gradients are as they will be applied, but ``scale`` times too large."""

    def updated(self, optimizer: Optimizer, outcome: Outcome, searches: bool, /) -> None:
        """Receive the outcome of its update, and whether it searches: see :meth:`StepBoundary.searches`."""

    def unseen(self, optimizer: Optimizer, /) -> None:
        """Receive an optimizer that has updated in compiled code, in which no hook runs."""

    def succeeded(self, before: Optimizer, optimizer: Optimizer, /) -> None:
        """Receive an optimizer that has taken the place of one like it, and is about to update."""


class RunListener(Protocol):
    """Listener to every step, sampled or not."""

    def updating(self, optimizer: Optimizer) -> None:
        """Receive an optimizer that is about to update."""

    def ended(self, step: int, outcome: Outcome, waited: float | None) -> None:
        """Receive the number and the outcome of a step that has ended, and the seconds within collectives, if known."""
