"""Counts of updates in which something is so: in a row, or among the latest."""

from __future__ import annotations

from collections import deque


class Streak:
    """Number of updates in a row in which something is so.

    Args:
        length: number of updates that completes it.
    """

    __slots__ = ("_length", "count", "since")

    def __init__(self, length: int) -> None:
        self._length = length
        self.count = 0
        """Updates in a row so far."""
        self.since = -1
        """Step of the first of these."""

    def completes(self, holds: bool, step: int) -> bool:
        """Count an update; return whether it completes the streak, which happens once until the streak is broken."""
        if not holds:
            self.count = 0
            return False
        if not self.count:
            self.since = step
        self.count += 1
        return self.count == self._length


class Share:
    """Number of the latest updates in which something is so.

    Args:
        least: number of updates that completes it.
        latest: number of updates that are counted.
    """

    __slots__ = ("_complete", "_count", "_least", "_steps")

    def __init__(self, least: int, latest: int) -> None:
        self._least, self._complete, self._count = least, False, 0
        self._steps: deque[int | None] = deque(maxlen=latest)

    @property
    def since(self) -> int:
        """Step of the first of the counted updates in which it is so; -1 if there is none."""
        return next((step for step in self._steps if step is not None), -1)

    def completes(self, holds: bool, step: int) -> bool:
        """Count an update; return whether it completes the share, which happens once until no counted update is so."""
        oldest = self._steps[0] if len(self._steps) == self._steps.maxlen else None
        self._steps.append(step if holds else None)
        self._count += (1 if holds else 0) - (oldest is not None)
        if not self._count:
            self._complete = False
        if self._complete or self._count < self._least:
            return False
        self._complete = True
        return True
