"""Ratios of ranks to their peers in the same step: how far each has gone from its own usual ratio.

Ranks that see different data differ legitimately, some of them always. What each rank's ratio to its peers has been in
earlier steps is its measure, and how far it has scattered: a median and the median absolute deviation, which what comes
once in a while does not move (Davies and Gather, "The identification of multiple outliers", 1993).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from probe.core.robust import MAD_TO_SIGMA

Array = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]
SAME, UNLIKE, SUMMED, MASKS = "same-data", "rank-unlike-peers", "gradients-summed", "same-dropout"
"""Names of the findings about ranks and their peers."""
STEPS_SAME = 5
"""Updates in a row after which equal own gradients show that ranks see the same data."""
LEAST = 1e-6
"""Part of the other ranks' numbers that stands for 0, which has no logarithm."""
BEYOND = 1.3
"""A departure goes further than so many times the farthest that is held."""
WIDER = 8.0
"""The scatter of few ratios is uncertain: it is wider by this number over theirs."""


class Departures(NamedTuple):
    """Distances of ratios from the usual ones, as logarithms; each of ``rows x ranks``, NaN where too few ratios are
    held."""

    distances: Array
    """Logarithm of the ratio, less the median of those that are held."""
    scatter: Array
    """Robust standard deviation of those that are held, wider if they are few."""
    farthest: Array
    """Largest distance among those that are held, without its sign."""

    @property
    def scores(self) -> Array:
        """Distances in units of the scatter, without their signs; 0 where a ratio has gone no further than before."""
        with np.errstate(invalid="ignore"):
            further = np.abs(self.distances) > BEYOND * self.farthest
            return np.where(further, np.abs(self.distances) / self.scatter, 0.0)


class PeerRatios:
    """Latest ratios of each row and rank. Rows are numbered; there are more as soon as one is used.

    Args:
        ranks: number of ranks, two or more.
        window: ratios that are held.
        fewest: ratios from which on there is a usual one.
        floor: least scatter.
    """

    def __init__(self, ranks: int, window: int, fewest: int, floor: float) -> None:
        self._window, self._fewest, self._floor = window, fewest, floor
        self._ring = np.full((0, window, ranks), np.nan, np.float32)
        self._taken = np.zeros(0, np.int64)

    def departures(self, rows: Indices, ratios: Array) -> Departures:
        """Return how far ``ratios`` (``rows x ranks``, logarithms) are from those that are held of ``rows``."""
        self._grow(rows)
        lengths = np.minimum(self._taken[rows], self._window)
        far = np.full((3, *ratios.shape), np.nan)
        judged = np.flatnonzero(lengths >= self._fewest)
        if len(judged):
            ring, counts = self._ring[rows[judged]], lengths[judged]
            usual = _medians(ring, counts)
            deviations = np.abs(ring - usual[:, None])
            least = np.maximum(self._floor, MAD_TO_SIGMA * _medians(deviations, counts))
            scatter = least * (1 + WIDER / counts[:, None])
            far[:, judged] = ratios[judged] - usual, scatter, _largest(deviations)
        return Departures(*far)

    def hold(self, rows: Indices, ratios: Array) -> None:
        """Hold ratios of ``rows``, each of which is named once; the oldest of a row make room."""
        self._grow(rows)
        self._ring[rows, self._taken[rows] % self._window] = ratios
        self._taken[rows] += 1

    def _grow(self, rows: Indices) -> None:
        more = int(rows.max(initial=-1)) + 1 - len(self._taken)
        if more > 0:
            size = max(more, len(self._taken))
            self._ring = np.concatenate([self._ring, np.full((size, *self._ring.shape[1:]), np.nan, np.float32)])
            self._taken = np.append(self._taken, np.zeros(size, np.int64))


def log_ratios(logarithms: Array) -> Array:
    """Return the logarithm of the ratio of each rank to the median of its peers, by logarithms; ``rows x ranks``. Of
    three ranks, the odd one alone is far from its peers' median; of two, each is compared with the other."""
    ranks = logarithms.shape[1]
    order = np.argsort(logarithms, axis=1)
    ordered = np.take_along_axis(logarithms, order, axis=1)
    places = np.argsort(order, axis=1)

    def of_peers(place: int) -> Array:
        without = np.where(places <= place, place + 1, place)
        return np.take_along_axis(ordered, without, axis=1)

    return logarithms - (of_peers((ranks - 2) // 2) + of_peers((ranks - 1) // 2)) / 2


def _medians(ring: npt.NDArray[np.float32], counts: Indices) -> Array:
    """Return medians over the second axis, of which ``counts`` are numbers; NaN fills the rest."""
    ordered, rows = np.sort(ring, axis=1), np.arange(len(ring))
    middle: Array = (ordered[rows, (counts - 1) // 2].astype(np.float64) + ordered[rows, counts // 2]) / 2
    return middle


def _largest(deviations: npt.NDArray[np.float32]) -> Array:
    largest: Array = np.fmax.reduce(deviations, axis=1).astype(np.float64)
    return largest
