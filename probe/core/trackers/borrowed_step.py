"""Steps of rows in a run of the program's, whose own counter nothing here may advance."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

from probe.core.trackers import TrackedRow, TrackerTarget

STEP = "probe/step"
"""Name of the step of the values beside it."""

MOST_WAITING = 64
"""Most rows that wait for the program's counter."""


class BorrowedStep:
    """Choice of the step at which each row is shown.

    A tracker that counts steps itself goes on after the highest that it has got: a row of a later step would shift the
    values that the program logs afterwards. So a row waits until the program has logged its step. If the program's
    counter falls behind, since it does not log every step, each new step of it gets the latest row.
    """

    def __init__(self) -> None:
        self._waiting: list[TrackedRow] = []
        """Rows whose steps the program has not logged yet."""
        self._last_shown = -1
        """Highest step at which a row was shown."""
        self._lags = False
        """True once the program's counter is known to fall behind."""

    def due(self, rows: Iterable[TrackedRow], highest: int | None, ends: bool = False) -> list[tuple[int, TrackedRow]]:
        """Return rows with the steps at which they are shown.

        Args:
            highest: the highest step that the program has logged; -1 before the first, None if unknown.
            ends: whether no more rows come.
        """
        self._waiting += rows
        rows_at_steps = [(row.step, row) for row in self._waiting if highest is None or row.step <= highest]
        self._waiting = [row for row in self._waiting if highest is not None and row.step > highest]
        self._last_shown = max([self._last_shown, *(step for step, _ in rows_at_steps)])
        self._lags = self._lags or ends or len(self._waiting) > MOST_WAITING
        if self._lags and self._waiting and highest is not None:
            if highest > self._last_shown:  # two rows at one step would replace each other's values
                rows_at_steps.append((highest, self._waiting[-1]))
                self._last_shown = highest
            self._waiting.clear()
        return rows_at_steps


class CountedRun(ABC):
    """Part of the trackers that count steps themselves: a run of the program's, which is joined, or an own one.

    In a joined run the counter of steps is the program's; ``probe/step`` has the step of the values beside it.

    Args:
        active: the program's run; None if it has none.
    """

    def __init__(self, target: TrackerTarget, active: Any) -> None:
        self._target, self._run, self._joined = target, active, active is not None
        self._step = BorrowedStep()
        self._last = 0
        """The highest step of a row."""

    @abstractmethod
    def _highest(self) -> int | None:
        """Return the highest step that was logged; None where the tracker does not show it."""

    def _check(self) -> None:  # noqa: B027 - Trackio has no such end
        """Check that a joined run goes on; raise TrackerEnded if the program has finished it."""

    def log(self, rows: Sequence[TrackedRow]) -> None:
        """Log ``rows``."""
        self._check()
        self._log(rows)

    def _log(self, rows: Sequence[TrackedRow], ends: bool = False) -> None:
        self._last = max([self._last, *(row.step for row in rows)])
        highest = self._highest() if self._joined else None
        for step, row in self._step.due(rows, highest, ends):
            self._run.log({**row.values, STEP: row.step}, step=step)

    def _put(self, name: str, thing: Any) -> None:
        """Log a text or a table at the last step; nothing before the first values of a joined run."""
        self._check()
        highest = self._highest() if self._joined else None
        if highest != -1:
            self._run.log({name: thing}, step=self._last if highest is None else min(self._last, highest))
