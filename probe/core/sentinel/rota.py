"""Parameters on a rota: a part of them is looked at around each update, within a budget of time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from probe.core.backend.protocols import Parameter, TrainingLoop
from probe.core.checks.update_facts import Values

COLUMNS = ("min", "max", "sum", "sumsq")
"""Moments that stand for the numbers of a parameter: two readings of the same numbers give the same."""
LEAST, MOST = 1 << 17, 1 << 24
"""Elements that are read at a time: at least, since so many take as long as the calls around them, and at most."""
ALIKE = 1e-3
"""Relative difference of numbers that are the same, one of them derived from sums."""
ROUNDING, NOUGHT = 1e-7, 0.1
"""Relative error of a sum of squares, and the part of a number that its successor must be less than."""
STRIDE = (5**0.5 - 1) / 2
"""Part of the parameters from the first of one turn to that of the next: the golden ratio, whose multiples fill
the gaps between earlier ones."""
SHARE = 0.005
"""Part of the time of training that the rota may take, beyond what the least takes."""

Wait = Callable[[], npt.NDArray[np.float64]]


class _Read(NamedTuple):
    """Moments of some parameters, on their way to the host, and the versions of these parameters."""

    positions: list[int]
    wait: Wait
    versions: Sequence[int]


class RotaReading(NamedTuple):
    """Readings around one update: before it and after it, and of the parameters before the last one, as its end left
    them and as they were before this one."""

    before: _Read | None
    after: _Read | None
    last: _Read | None
    again: _Read | None

    def values(self) -> Values | None:
        """Return what the readings show; wait for the device."""
        if self.before is None or self.after is None:
            return None
        positions = np.asarray(self.before.positions, np.int64)
        before = self.before.wait()
        moved = ~_equal(before, self.after.wait())
        written, known, seen = (np.zeros(len(positions), np.bool_) for _ in range(3))
        elements = np.full(len(positions), -1)
        if self.last is not None and self.again is not None:
            shared, here, there = np.intersect1d(positions, self.last.positions, return_indices=True)
            if len(shared):
                known[here] = np.asarray(self.last.versions)[there] >= 0
                last, again = self.last.wait()[there], self.again.wait()[there]
                written[here] = ~_equal(last, again)
                elements[here] = np.where(_is_one_element(last, again), 1, -1)
                seen[here] = (np.asarray(self.last.versions) != np.asarray(self.again.versions))[there]
        return Values(positions, moved, written, seen, known, elements, _norms_and_sums(before))


def _norms_and_sums(moments: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.column_stack((np.sqrt(moments[:, COLUMNS.index("sumsq")]), moments[:, COLUMNS.index("sum")]))


def _equal(one: npt.NDArray[np.float64], other: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    same: npt.NDArray[np.bool_] = ((one == other) | (np.isnan(one) & np.isnan(other))).all(axis=1)
    return same


def _is_one_element(before: npt.NDArray[np.float64], after: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Return where moments have changed as if one element had changed, or become NaN or Inf.

    The differences of the sums and of the sums of squares then give its number of before and of after. The one of after
    is the new extreme, or as good as zero, which follows from changes of several elements by chance only.
    """
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        rise, squares = after[:, 2] - before[:, 2], after[:, 3] - before[:, 3]
        new = (squares / rise + rise) / 2
        old = new - rise
        extremes = (after[:, 1] > before[:, 1], after[:, 1]), (after[:, 0] < before[:, 0], after[:, 0])
        is_new = [beyond & (np.abs(new - extreme) <= ALIKE * np.abs(extreme)) for beyond, extreme in extremes]
        slack = ALIKE * np.abs(new)  # the difference of two large numbers says little about a small one
        was_there = (old >= before[:, 0] - slack) & (old <= before[:, 1] + slack)
        error = ROUNDING * after[:, 3] / np.abs(rise)
        is_nought = (error <= NOUGHT * np.abs(old)) & (np.abs(new) <= error)
        spoilt = ~np.isfinite(after).all(axis=1) & np.isfinite(before).all(axis=1)
    alone: npt.NDArray[np.bool_] = spoilt | ((is_new[0] | is_new[1] | is_nought) & was_there)
    return alone


class Rota:
    """The parameters of one optimizer, of which a part is read before and after each update.

    Args:
        parameters: all of them.
        sizes: number of elements of each.
    """

    def __init__(self, loop: TrainingLoop, parameters: Sequence[Parameter], sizes: Sequence[int]) -> None:
        self._loop, self._parameters, self._sizes = loop, parameters, sizes
        self._reader = loop.reader(parameters, COLUMNS)
        self._elements, self._all = sum(sizes), [*range(len(sizes))]
        self._room, self._turn = LEAST, 0
        self._before: _Read | None = None
        self._last: _Read | None = None
        self._again: _Read | None = None
        self._spent, self._began = 0.0, time.perf_counter()

    def before(self) -> None:
        """Read before an update the parameters whose turn it is, and those whose turn it was."""
        begun = time.thread_time()
        chosen, last = self._chosen(), self._last
        if last is not None and last.positions == chosen:
            self._before = self._again = self._read(chosen)
        else:
            self._again = None if last is None else self._read(last.positions)
            self._before = self._read(chosen)
        self._spent += time.thread_time() - begun

    def after(self) -> RotaReading:
        """Read the same parameters after the update."""
        begun = time.thread_time()
        before, self._before = self._before, None
        after = None if before is None else self._read(before.positions)
        looked = RotaReading(before, after, self._last, self._again)
        self._last, self._again = after, None
        now = time.perf_counter()
        self._pace(self._spent + time.thread_time() - begun, now - self._began)
        self._spent, self._began = 0.0, now
        return looked

    def _chosen(self) -> list[int]:
        """Return the positions of the next parameters that fit into the room; at least one.

        The first of them depends on the number of the turn alone, so that ranks with another room, too, read parameters
        in common, which can be compared.
        """
        room, number, first = self._room, len(self._sizes), int(self._turn * STRIDE % 1 * len(self._sizes))
        self._turn += 1
        if self._elements <= room:
            return self._all
        chosen: list[int] = []
        for offset in range(number):
            position = (first + offset) % number
            if chosen and self._sizes[position] > room:
                break
            room -= self._sizes[position]
            chosen.append(position)
        return chosen

    def _pace(self, spent: float, passed: float) -> None:
        """Read more or less next time, so that it takes about the share of the time."""
        allowed = SHARE * passed
        if spent > allowed:
            self._room = max(LEAST, min(self._room, self._elements) // 2)
        elif 4 * spent < allowed:
            self._room = min(MOST, self._room * 2)

    def _read(self, chosen: list[int]) -> _Read | None:
        there, wait = self._reader.read(chosen)
        if not there:
            return None
        return _Read(there, wait, self._loop.versions([self._parameters[position] for position in there]))
