"""Phases of a run: stages such as evaluation or saving, timed on the training thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol


class PhaseMarks(Protocol):
    """Marks of phases, which another process reads."""

    def enter(self, phase: str) -> None:
        """Note that ``phase`` begins, perhaps inside another."""

    def leave(self) -> None:
        """Note that the innermost phase ends."""


class Phases:
    """Seconds spent in each phase of the step in progress. Used on the training thread alone.

    Within a phase inside another, time counts for the inner one alone.

    Args:
        marks: receives the beginning and the end of each phase.
    """

    def __init__(self, marks: PhaseMarks | None = None, now: Callable[[], float] = time.perf_counter) -> None:
        self._marks, self._now = marks, now
        self.open: list[str] = []
        """Names of the phases in progress."""
        self._seconds: dict[str, float] = {}
        self._since = 0.0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Return a context whose time counts for the phase ``name``."""
        self._turn()
        self.open.append(name)
        if self._marks is not None:
            self._marks.enter(name)
        try:
            yield
        finally:
            self._turn()
            if self.open:
                self.open.pop()
            if self._marks is not None:
                self._marks.leave()

    def take(self) -> dict[str, float]:
        """Return the seconds since the last call by phase, without those outside of every phase."""
        self._turn()
        seconds, self._seconds = self._seconds, {}
        return seconds

    def _turn(self) -> None:
        """Count the time since the last call for the phase in progress."""
        now = self._now()
        if self.open:
            name = self.open[-1]
            self._seconds[name] = self._seconds.get(name, 0.0) + now - self._since
        self._since = now
