"""Leaps of a series above its own recent past, for losses and norms: rare by design.

A single value is no finding. A leap is one if the series comes back, or goes on rising: a series that stays where it
has leapt to, or falls from there, is one of another task, of another stage of a curriculum, or of harder data.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from math import log
from typing import Literal, NamedTuple

import numpy as np

from probe.core.robust import MAD_TO_SIGMA

WINDOW = 50
"""Latest values that are compared with."""
LEAST = 20
"""Values before one is judged."""
DEVIATIONS = (8.0, 12.0)
"""Robust standard deviations of the window that a leap is beyond: of losses, of logarithms of norms, which leap in
healthy training at times."""
TAIL = 3.0
"""Factor by which it is beyond the largest deviation in the window."""
RETURN = 0.2
"""Share of the leap within which the series has come back."""
PATIENCE = 6
"""Values after a leap in which it must come back or go on."""
MOST_SERIES = 16
"""Series that are remembered."""
UNEVEN = (0.25, 0.4)
"""Robust standard deviation of a series from which on it is not judged: of losses relative to their median, of
logarithms."""

Course = Literal["returned", "rising", "stayed"]


class Leap(NamedTuple):
    """Leap of a series."""

    course: Course
    since: int
    """Step of the leap."""
    value: float
    median: float
    """Median of the values before it."""
    deviations: float
    """Size in robust standard deviations."""


class _Pending(NamedTuple):
    step: int
    value: float
    median: float
    deviations: float
    values: list[float]


class LeapSeries:
    """Series of one kind: values that are alike.

    Args:
        logarithmic: judge logarithms, as of norms.
    """

    def __init__(self, logarithmic: bool) -> None:
        self._logarithmic = logarithmic
        self._values: deque[float] = deque(maxlen=WINDOW)
        self._pending: _Pending | None = None

    @property
    def ready(self) -> bool:
        """Return whether the next value is judged."""
        return len(self._values) >= LEAST

    def judge(self, value: float, highest: float, step: int) -> Leap | None:
        """Return the leap that has become certain with this value; None if there is none.

        Args:
            value: the value, its logarithm if this judges logarithms.
            highest: the highest value that the run had before.
        """
        if self._pending is not None:
            return self._follow(self._pending, value)
        if value > highest and self.ready:
            self._pending = self._begun(value, highest, step)
        if self._pending is None:
            self._values.append(value)
        return None

    def _begun(self, value: float, highest: float, step: int) -> _Pending | None:
        """Return the leap that begins with this value; None if it is no leap."""
        values = np.array(self._values)
        middle = float(np.median(values))
        deviation = np.abs(values - middle)
        floor = 0.02 if self._logarithmic else 0.01 * abs(middle)
        sigma = max(MAD_TO_SIGMA * float(np.median(deviation)), floor)
        least = log(4.0) if self._logarithmic else 0.0
        limit = max(DEVIATIONS[self._logarithmic] * sigma, TAIL * float(deviation.max()), least)
        rise, scale = value - middle, 1.0 if self._logarithmic else abs(middle)
        if rise <= limit or sigma > UNEVEN[self._logarithmic] * scale or value - highest < 2 * sigma:
            return None
        return _Pending(step, value, middle, rise / sigma, [])

    def _follow(self, pending: _Pending, value: float) -> Leap | None:
        rise = pending.value - pending.median
        if value <= pending.median + RETURN * rise:
            self._values.append(value)
            return self._end(pending, "returned")
        pending.values.append(value)
        if len(pending.values) < PATIENCE:
            return None
        if float(np.median(pending.values[-3:])) > pending.value + 0.5 * rise:
            return self._end(pending, "rising")
        return self._end(pending, "stayed")

    def _end(self, pending: _Pending, course: Course) -> Leap:
        if course != "returned":  # another level: nothing is judged until there is a past again
            self._values.clear()
            self._values.extend([pending.value, *pending.values])
        self._pending = None
        return Leap(course, pending.step, pending.value, pending.median, pending.deviations)


class LeapMemory:
    """Series of a run, apart by what makes values unlike: the parameters that have a gradient, the backwards.

    Args:
        logarithmic: judge logarithms, as of norms.
    """

    def __init__(self, logarithmic: bool) -> None:
        self._logarithmic = logarithmic
        self._series: OrderedDict[Hashable, LeapSeries] = OrderedDict()
        self._highest = float("-inf")

    def judge(self, key: Hashable, value: float, step: int) -> Leap | None:
        """Return the leap that has become certain with this value; None if there is none.

        Args:
            key: names the series that the value belongs to.
            value: a finite number; positive if this judges logarithms.
        """
        number = log(value) if self._logarithmic else value
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = LeapSeries(self._logarithmic)
            if len(self._series) > MOST_SERIES:
                self._series.popitem(last=False)
        self._series.move_to_end(key)
        leap = series.judge(number, self._highest, step)
        self._highest = max(self._highest, number)
        return leap

    @property
    def ready(self) -> bool:
        """Return whether any series has enough values."""
        return any(series.ready for series in self._series.values())
