"""The end of a run, in parts that are done once and in order, however often it is interrupted."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable


class RunEnd:
    """The parts of an end that are left. One that is interrupted (Ctrl-C, a signal handler that raises) is called again
    by the next :meth:`go_on`, so each part can be called twice."""

    def __init__(self) -> None:
        self._left: deque[Callable[[], object]] | None = None
        self._deadline = 0.0

    @property
    def begun(self) -> bool:
        """True if the end has parts, done or not."""
        return self._left is not None

    @property
    def interrupted(self) -> bool:
        """True if parts are left."""
        return bool(self._left)

    @property
    def remaining(self) -> float:
        """Seconds until the deadline of the latest :meth:`go_on`."""
        return max(0.0, self._deadline - time.monotonic())

    def begin(self, parts: Iterable[Callable[[], object]]) -> None:
        """Set the parts, which raise no ``Exception``."""
        self._left = deque(parts)

    def go_on(self, seconds: float) -> None:
        """Do the parts that are left. Callable inside a signal handler that has interrupted it.

        Args:
            seconds: time that they have.

        Raises:
            BaseException: what has interrupted a part; it and those after it are left.
        """
        self._deadline = time.monotonic() + seconds
        while self._left:
            part = self._left[0]
            part()
            if self._left and self._left[0] is part:  # else a signal handler has gone on
                self._left.popleft()
