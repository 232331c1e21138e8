"""Budgets: the longest times without progress that are no reason for an alert, by phase.

A stretch is the time from one sign of progress to the next. The budget of a phase follows from its stretches so far.
Before the first step, and in a phase without a stretch, it is ``startup_seconds``: first times are slow (compilation,
caches, the first evaluation). Afterwards it is the largest of

- ``3 * longest``; ``10 * longest`` while there are fewer than 20 stretches;
- ``10 * median``;
- ``median * (p90 / median) ** 4``, but at most ``10 * longest``. Durations are log-normal, more or less: then ``p90``,
  the ninth decile, is 1.28 standard deviations (of the logarithm) above the median, and this bound 5.1, which one
  stretch in four million exceeds, however wide the distribution is;

but at most ``startup_seconds``, or ``3 * longest`` if that is more. It is at least ``floor_seconds``, and at least 1.5
times the longest pause that led to an alert and then ended: it was no standstill, and may come again.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple, Protocol

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
    if number <= 0:
        return Stretches(0, 0.0, 0.0, 0.0)
    return Stretches(number, *(longest_in(_bucket_at(counts, share * number)) for share in (0.5, 0.9, 1.0)))


def _bucket_at(counts: Sequence[int], least: float) -> int:
    """Return the first bucket that holds, with those below it, ``least`` stretches or more."""
    return next(bucket for bucket, total in enumerate(accumulate(counts)) if total >= least)


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


def promise_of(seconds: float) -> float:
    """Return the rest of a budget as a promise in whole seconds; 0 if it is over."""
    return float(math.ceil(max(seconds, 0.0)))


class ProgressSource(Protocol):
    """Progress of one rank, of this process or read from the file of another."""

    def counts(self, phase: str) -> Sequence[int]:
        """Return the histogram of the stretches of a phase."""


class RankBudget:
    """Budget of one rank, which learns from its progress: the only judge of what takes too long, for the watcher of a
    node, for heartbeats and for the tracker of steps.

    Args:
        progress: progress of the rank.
        budget: budgets of its phases.
    """

    def __init__(self, progress: ProgressSource, budget: Budget) -> None:
        self.budget = budget
        self._progress = progress
        self._before: tuple[str, Sequence[int]] | None = None
        """Phase and histogram at the beginning of a standstill."""
        self._pardoned: dict[str, Counter[int]] = {}

    def past(self, phase: str) -> Stretches:
        """Return the stretches of a phase, without those that seemed to be standstills."""
        pardoned = self._pardoned.get(phase, Counter())
        counts = self._progress.counts(phase)
        return stretches([count - pardoned[bucket] for bucket, count in enumerate(counts)] if pardoned else counts)

    def left(self, row: ProgressRow, now: int) -> float:
        """Return the seconds that are left at ``now``, in nanoseconds of the clock of ``row``."""
        return self.budget.left(row, self.past(row.phase), now)

    def stand_still(self, phase: str) -> None:
        """Remember the stretches before a standstill."""
        self._before = phase, [*self._progress.counts(phase)]

    def go_on(self, phase: str, seconds: float) -> None:
        """Learn from a standstill of ``seconds`` that has ended: not as from an ordinary stretch."""
        phase, before = self._before or (phase, None)
        self._before = None
        self.budget.survive(phase, seconds)
        if before is not None:
            now = self._progress.counts(phase)
            grown = [bucket for bucket, count in enumerate(now) if count > before[bucket]]
            self._pardoned.setdefault(phase, Counter()).update(grown[-1:])


class OwnProgress(ProgressSource, Protocol):
    """Progress of this process."""

    def row(self) -> ProgressRow:
        """Return the progress at this moment."""


def stillness(row: ProgressRow | None, progress: ProgressSource, budget: Budget, now: int) -> float:
    """Return the seconds since the last progress ``row`` if they exceed the budget at ``now``, else 0."""
    is_over = row is not None and RankBudget(progress, budget).left(row, now) < 0
    return (now - row.time) / 1e9 if row is not None and is_over else 0.0


class OwnBudget:
    """Budget of this rank, as it judges itself.

    Args:
        progress: progress of this process.
        since: time before which nothing counts, in nanoseconds of its clock.
    """

    def __init__(self, progress: OwnProgress, budget: Budget, since: int = 0) -> None:
        self._progress, self._rank = progress, RankBudget(progress, budget)
        self._since = since
        self._still: ProgressRow | None = None
        """Last progress before a standstill that goes on."""

    def look(self, now: int) -> tuple[ProgressRow, float]:
        """Return the progress and the seconds that are left of its budget at ``now``; negative if it is over."""
        row = self._progress.row()
        row = row._replace(time=max(row.time, self._since))
        if self._still is not None and row.time != self._still.time:
            self._rank.go_on(self._still.phase, (row.time - self._still.time) / 1e9)
            self._still = None
        seconds_left = self._rank.left(row, now)
        if seconds_left < 0 and self._still is None:
            self._still = row
            self._rank.stand_still(row.phase)
        return row, seconds_left
