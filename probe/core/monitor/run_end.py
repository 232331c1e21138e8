"""The end of a run, in parts that are done once and in order, however often it is interrupted."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable


class RunEnd:
    """The parts of an end that are left. One that is interrupted (Ctrl-C, a signal handler that raises) is called again
    by the next :meth:`go_on`: each part can be called twice.

    Args:
        parts: raise no ``Exception``.
    """

    def __init__(self, parts: Iterable[Callable[[], object]]) -> None:
        self._left = deque(parts)

    @property
    def over(self) -> bool:
        """True if every part is done."""
        return not self._left

    def go_on(self) -> None:
        """Do the parts that are left. Callable inside a signal handler that has interrupted it.

        Raises:
            BaseException: what has interrupted a part; it and those after it are left.
        """
        while self._left:
            part = self._left[0]
            part()
            if self._left and self._left[0] is part:  # else a signal handler has gone on
                self._left.popleft()
