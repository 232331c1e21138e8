"""Parameters on a rota: a part of them is looked at around each update, within a budget of time."""

from __future__ import annotations

import functools
import time
from collections import deque
from collections.abc import Callable, Sequence
from math import isfinite
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from probe.core.backend.protocols import Parameter, TrainingLoop
from probe.core.checks.update_facts import Mask, Values, is_all, is_any

COLUMNS = ("min", "max", "sum", "sumsq")
"""Moments that stand for the numbers of a parameter: two readings of the same numbers give the same."""
LEAST, MOST = 1 << 17, 1 << 24
"""Elements that are read at a time: at least, since so many take as long as the calls around them, and at most."""
ALIKE = 1e-3
"""Relative difference of numbers that are the same, one of them derived from sums."""
ROUNDING = 1e-7
"""Relative error of a sum of squares."""
NOUGHT = 0.1
"""Largest error, as a part of the number before, with which a number is known to have become 0."""
SOME_MADE = 10
"""Updates after which an optimizer has begun."""
MOST_PAST = 1 << 16
"""Updates after which the numbers are remembered."""
STRIDE = (5**0.5 - 1) / 2
"""Part of the parameters from the first of one turn to that of the next: the golden ratio, whose multiples fill
the gaps between earlier ones."""
SHARE = 0.005
"""Part of the time of training that the rota may take, beyond what the least takes."""

Wait = Callable[[], npt.NDArray[np.float64]]
Positions = npt.NDArray[np.int64]


class _Read:
    """Moments of some parameters, on their way to the host.

    Args:
        positions: of the parameters.
        wait: returns the moments, a row for each.
        versions: of these parameters.
    """

    __slots__ = ("_rows", "positions", "versions", "wait")

    def __init__(self, positions: Sequence[int], wait: Wait, versions: Sequence[int]) -> None:
        self.positions, self.versions, self.wait = positions, versions, wait
        self._rows: npt.NDArray[np.float64] | None = None

    def rows(self) -> npt.NDArray[np.float64]:
        """Return the moments; wait for the device."""
        if self._rows is None:
            self._rows = self.wait()
        return self._rows


class PastNumbers:
    """Numbers that all parameters had after updates, as hashes. It belongs to the thread that waits for readings.

    Args:
        model: number that other parameters do not have.
    """

    latest: ClassVar[deque[tuple[int, int]]] = deque(maxlen=8)
    """Hashes after the latest updates of optimizers that have begun, with the number of their parameters."""

    def __init__(self, model: int) -> None:
        self._model, self._hashes = model, dict[int, None]()

    def goes_on(self, rows: npt.NDArray[np.float64]) -> bool:
        """Return whether parameters that were never updated have the numbers that an optimizer has left in others."""
        number = 0 if self._hashes else hash(rows.tobytes())
        return any(number == later and model != self._model for later, model in [*self.latest])  # others add

    def knows(self, rows: npt.NDArray[np.float64]) -> bool:
        """Return whether all parameters had these numbers after an update."""
        return hash(rows.tobytes()) in self._hashes

    def add(self, rows: npt.NDArray[np.float64]) -> None:
        """Remember the numbers after an update; forget the oldest if they are many."""
        self._hashes[number := hash(rows.tobytes())] = None
        if len(self._hashes) > SOME_MADE:
            self.latest.append((number, self._model))
        if len(self._hashes) > MOST_PAST:
            del self._hashes[next(iter(self._hashes))]


class RotaReading(NamedTuple):
    """Readings around one update, of the parameters whose turn it is, and of those whose turn was the last update."""

    before: _Read | None
    """Parameters of this turn before the update."""
    after: _Read | None
    """The same after the update."""
    last: _Read | None
    """Parameters of the last turn, as the last update left them."""
    again: _Read | None
    """The same before this update."""
    past: PastNumbers | None = None
    """Numbers of earlier updates, if all parameters are read each time."""

    def values(self) -> Values | None:
        """Return what the readings show; wait for the device."""
        if self.before is None or self.after is None:
            return None
        looked = positions_of(tuple(self.before.positions))
        number = len(looked)
        moved, none, unknown = _moved(self.before.rows(), self.after.rows()), none_of(number), _unknown(number)
        writes: tuple[Mask, Mask, Mask, Positions] = none, none, none, unknown
        if self.last is not None and self.again is not None:
            same = self.last.positions is self.again.positions is self.before.positions
            if same and _alike(self.last, self.again):
                writes = none, none, all_of(number), unknown
            else:
                writes = self._written(looked, self.last, self.again)
        restored = goes_on = False
        if self.past is not None:
            goes_on = self.past.goes_on(self.before.rows())
            restored = is_any(writes[0]) and self.past.knows(self.before.rows())
            self.past.add(self.after.rows())
        numbers = functools.partial(_norms_and_sums, self.before)
        return Values(looked, moved, *writes, restored, self._limits, numbers, goes_on, self._shifts)

    def _shifts(self) -> npt.NDArray[np.float64]:
        """Return by how much the least or the greatest number of each parameter has changed, the larger."""
        assert self.before is not None, "the caller has looked"
        assert self.after is not None, "the caller has looked"
        shifts: npt.NDArray[np.float64] = np.abs(self.after.rows()[:, :2] - self.before.rows()[:, :2]).max(axis=1)
        return shifts

    def _limits(self) -> npt.NDArray[np.float64]:
        """Return the least and the greatest number of each parameter before the update."""
        assert self.before is not None, "the caller has looked"
        return self.before.rows()[:, :2]

    def _written(self, looked: Positions, last: _Read, again: _Read) -> tuple[Mask, Mask, Mask, Positions]:
        """Return for each parameter that was looked at whether its numbers have changed since the last update, whether
        an operation has written it, whether its numbers are known, and of how many elements."""
        written, is_known, seen = (np.zeros(len(looked), np.bool_) for _ in range(3))
        elements = np.full(len(looked), -1)
        shared, new_rows, last_rows = np.intersect1d(looked, last.positions, return_indices=True)
        if len(shared):
            is_known[new_rows] = np.asarray(last.versions)[last_rows] >= 0
            before, now = last.rows()[last_rows], again.rows()[last_rows]
            written[new_rows] = ~_equal(before, now)
            elements[new_rows] = np.where(_is_one_element(before, now), 1, -1)
            seen[new_rows] = (np.asarray(last.versions) != np.asarray(again.versions))[last_rows]
        return written, seen, is_known, elements


@functools.lru_cache(maxsize=64)
def positions_of(positions: tuple[int, ...]) -> Positions:
    """Return positions as an array, the same object for the same positions."""
    return np.array(positions, np.int64)


@functools.lru_cache(maxsize=64)
def none_of(number: int) -> Mask:
    """Return False for each of some things; the array is shared."""
    return np.zeros(number, np.bool_)


@functools.lru_cache(maxsize=64)
def all_of(number: int) -> Mask:
    """Return True for each of some things; the array is shared."""
    return np.ones(number, np.bool_)


@functools.lru_cache(maxsize=64)
def _unknown(number: int) -> Positions:
    """Return -1 for each of some things; the array is shared."""
    return np.full(number, -1)


def _moved(before: npt.NDArray[np.float64], after: npt.NDArray[np.float64]) -> Mask:
    """Return which rows differ."""
    if is_all(before[:, -1] != after[:, -1]) and isfinite(after[:, -1].sum()):  # most updates move each parameter
        return all_of(len(before))
    return ~_equal(before, after)


def _alike(last: _Read, again: _Read) -> bool:
    """Return whether no number has changed between two readings, and the versions of the parameters are known."""
    return last.rows().tobytes() == again.rows().tobytes() and -1 not in last.versions


def _norms_and_sums(read: _Read) -> npt.NDArray[np.float64]:
    moments = read.rows()
    return np.column_stack((np.sqrt(moments[:, COLUMNS.index("sumsq")]), moments[:, COLUMNS.index("sum")]))


def _equal(first: npt.NDArray[np.float64], second: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    same: npt.NDArray[np.bool_] = ((first == second) | (np.isnan(first) & np.isnan(second))).all(axis=1)
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
        self._past = PastNumbers(id(parameters[0]) if parameters else 0)
        self._before: _Read | None = None
        self._last: _Read | None = None
        self._again: _Read | None = None
        self._paced = self._elements > LEAST
        """True if less than all may be read at a time. Else time is not measured: that is a call of the system."""
        self._spent, self._began = 0.0, time.perf_counter()

    def before(self) -> None:
        """Read before an update the parameters whose turn it is, and those whose turn it was."""
        begun = self._clock()
        positions, last = self._chosen(), self._last
        if last is not None and last.positions == positions:
            self._before = self._again = self._read(positions, last)
        else:
            self._again = None if last is None else self._read(last.positions, last)
            self._before = self._read(positions)
        self._spent += self._clock() - begun

    def after(self) -> RotaReading:
        """Read the same parameters after the update."""
        begun = self._clock()
        before, self._before = self._before, None
        after = None if before is None else self._read(before.positions)
        past = self._past if after is not None and len(after.positions) == len(self._all) else None
        looked = RotaReading(before, after, self._last, self._again, past)
        self._last, self._again = after, None
        if self._paced:
            now = time.perf_counter()
            self._pace(self._spent + self._clock() - begun, now - self._began)
            self._spent, self._began = 0.0, now
        return looked

    def _clock(self) -> float:
        return time.thread_time() if self._paced else 0.0

    def _chosen(self) -> list[int]:
        """Return the positions of the next parameters that fit into the room; at least one.

        The first of them depends on the number of the turn alone, so that ranks with another room, too, read parameters
        in common, which can be compared.
        """
        room, number, first = self._room, len(self._sizes), int(self._turn * STRIDE % 1 * len(self._sizes))
        self._turn += 1
        if self._elements <= room:
            return self._all
        positions: list[int] = []
        for offset in range(number):
            position = (first + offset) % number
            if positions and self._sizes[position] > room:
                break
            room -= self._sizes[position]
            positions.append(position)
        return positions

    def _pace(self, spent: float, passed: float) -> None:
        """Read more or less next time, so that it takes about the share of the time."""
        allowed = SHARE * passed
        if spent > allowed:
            self._room = max(LEAST, min(self._room, self._elements) // 2)
        elif 4 * spent < allowed:
            self._room = min(MOST, self._room * 2)

    def _read(self, positions: Sequence[int], last: _Read | None = None) -> _Read | None:
        """Read parameters. Where nothing has changed since the last reading, their versions do not matter."""
        readable, wait = self._reader.read(positions)
        if not readable:
            return None
        if last is not None and readable is last.positions and wait == last.wait:
            return _Read(readable, wait, last.versions)
        parameters = (
            self._parameters if readable is self._all else [self._parameters[position] for position in readable]
        )
        return _Read(readable, wait, self._loop.versions(parameters))
