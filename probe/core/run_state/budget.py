"""Budgets: the longest times without progress that are no reason for an alert, by phase.

A stretch is the time from one sign of progress to the next. The budget of a phase comes from its stretches so far:

- none yet, or before the first step: ``startup_seconds``. Nothing is known, and first times are slow: compilation,
  caches, the first evaluation.
- else the largest of: ``floor_seconds``; 3 times the longest stretch, 10 times as long as there are fewer than 20;
  10 times the median; and the median times the fourth power of the ratio of the ninth decile to it. For log-normal
  durations, however wide, the last is five standard deviations above the median, which one stretch in four million
  exceeds; it is at most 10 times the longest stretch. Together they are at most ``startup_seconds``, or 3 times the
  longest stretch if that is more.
- 1.5 times the longest pause after an alert that went by: such a pause was no standstill, and its like may come again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from probe.core.run_state.progress_file import PHASES, PROGRESS_SINCE, START, ProgressRow, longest_in

FEW = 20
"""Number of stretches from which on their spread is known."""


class Stretches(NamedTuple):
    """Stretches of one phase so far, in seconds."""

    number: int
    median: float
    ninth: float
    """Ninth decile."""
    longest: float


def stretches(counts: Sequence[int]) -> Stretches:
    """Summarize a histogram; a value is the upper end of its bucket, at most a quarter too long."""
    number = sum(counts)
    found, seen, marks = [], 0, [number * 0.5, number * 0.9, number]
    for bucket, count in enumerate(counts):
        seen += count
        while count > 0 and marks and seen >= marks[0]:
            found.append(longest_in(bucket))
            marks.pop(0)
    return Stretches(number, *found) if len(found) == 3 else Stretches(0, 0.0, 0.0, 0.0)


class Budget:
    """Budgets of a rank.

    Args:
        floor_seconds: shortest budget.
        startup_seconds: budget of a phase of which nothing is known.
    """

    def __init__(self, floor_seconds: float, startup_seconds: float) -> None:
        self.floor_seconds = floor_seconds
        self.startup_seconds = max(startup_seconds, floor_seconds)
        self._survived: dict[str, float] = {}

    def seconds(self, phase: str, past: Stretches) -> float:
        """Return the budget of a phase."""
        if phase == PHASES[START] or not past.number:
            return max(self.startup_seconds, self._lived_through(phase))
        wide = min(past.median * (past.ninth / past.median) ** 4, 10 * past.longest)
        times = 10 if past.number < FEW else 3
        learnt = max(times * past.longest, 10 * past.median, wide)
        most = max(self.startup_seconds, 3 * past.longest)
        return max(self.floor_seconds, min(learnt, most), self._lived_through(phase))

    def left(self, row: ProgressRow, past: Stretches, now: int) -> float:
        """Return the seconds that are left of the budget at ``now``, in nanoseconds of the clock of ``row``; negative
        if it is over. A promise replaces the budget until it is over or the rank shows progress."""
        by_budget = row.time / 1e9 + self.seconds(row.phase, past) - now / 1e9
        by_promise = (row.until - now) / 1e9
        if not row.until:
            return by_budget
        return max(by_budget, by_promise) if row.until & PROGRESS_SINCE else by_promise

    def survive(self, phase: str, seconds: float) -> None:
        """Learn that progress went on after a pause of ``seconds`` that had seemed a standstill."""
        self._survived[phase] = max(seconds, self._survived.get(phase, 0.0))

    def _lived_through(self, phase: str) -> float:
        return 1.5 * self._survived.get(phase, 0.0)
