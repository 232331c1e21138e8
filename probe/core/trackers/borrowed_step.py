"""Steps of rows in a run of the program's, whose own counter nothing here may advance."""

from __future__ import annotations

from collections.abc import Iterable

from probe.core.trackers import TrackedRow

MOST_HELD = 64
"""Most rows that wait for the program's counter."""


class BorrowedStep:
    """Choice of the step at which each row is shown.

    A tracker that counts steps itself goes on after the highest that it has got: a row of a later step would shift the
    values that the program logs afterwards. So a row waits until the program has logged its step. If the program's
    counter falls behind, since it does not log every step, each new step of it gets the latest row.
    """

    def __init__(self) -> None:
        self._held: list[TrackedRow] = []
        self._last = -1
        self._behind = False

    def due(self, rows: Iterable[TrackedRow], highest: int | None, ends: bool = False) -> list[tuple[int, TrackedRow]]:
        """Return rows with the steps at which they are shown.

        Args:
            highest: the highest step that the program has logged; -1 before the first, None if unknown.
            ends: whether no more rows come.
        """
        self._held += rows
        due = [(row.step, row) for row in self._held if highest is None or row.step <= highest]
        self._held = [row for row in self._held if highest is not None and row.step > highest]
        self._last = max([self._last, *(step for step, _ in due)])
        self._behind = self._behind or ends or len(self._held) > MOST_HELD
        if self._behind and self._held and highest is not None:
            if highest > self._last:
                due.append((highest, self._held[-1]))
                self._last = highest
            self._held.clear()
        return due
