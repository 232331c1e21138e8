"""Rows that left their level and stayed away from it, sought in whole arrays of logarithms of norms.

Notation: ``logs[t, r]`` is the logarithm of the norm of row ``r`` in sampled step ``t``, NaN where there is none.
Seen from a step ``s``, ``d = logs - median(logs[s - 32 : s])`` is how far a row has moved, ``c`` the median of ``d``
over the rows of one kind, which rise and fall together with a step's batch and loss, and
``z = (d - c) / (max(1.4826 MAD of the last 32 values of d - c, floor) + drift)`` the row's own movement in units of its
spread. The level is that of the steps before ``s`` however long the row stays away: else it would become normal after
sixteen. So ``drift`` is how far the row would go at its pace of those steps, which is the distance between the medians
of both halves of the window: parameters and activations of healthy runs go on and on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from probe.core.robust import MAD_TO_SIGMA, medians

Array = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

WINDOW = 32
"""Latest samples of a row that its level and its spread are taken from."""
LEAST_OF_SPREAD = 8
"""Movements of a row before which its spread is not known."""
FEWEST_ROWS = 5
"""Rows of a kind below which nothing is taken for their common movement."""
BLOCK = 4_000_000
"""Numbers that are sorted at a time."""
SHOWN = 0.75
"""Part of its window in which a row must have a number: experts and branches come and go."""


class NormTable(NamedTuple):
    """Logarithms of the norms of rows over sampled steps."""

    logs: Array
    """One line a step, one column a row."""
    kinds: Indices
    """Number of the kind of each row: rows of one kind move together."""
    floors: Array
    """Least spread of each row."""


class Excursions(NamedTuple):
    """Rows that have been away from their level for some number of samples, by the first of them."""

    starts: Indices
    """Index of the first sampled step away, by excursion."""
    rows: Indices
    samples: int
    weakest: Array
    """Least distance from the level, in spreads."""
    factors: Array
    """Logarithm of the norm's latest value over its level."""

    @property
    def ends(self) -> Indices:
        """Index of the last sampled step away."""
        ends: Indices = self.starts + (self.samples - 1)
        return ends

    def where(self, mask: Mask) -> Excursions:
        """Return some of them."""
        return Excursions(self.starts[mask], self.rows[mask], self.samples, self.weakest[mask], self.factors[mask])


def excursions(table: NormTable, least: float, longest: int, candidates: Mask | None = None) -> Iterator[Excursions]:
    """Yield the rows that are away for one sample, for two, and so on, on one side.

    Args:
        least: distance in spreads from which on a row is away. Its own movement, with that of all rows of its kind,
            must be half of it: where most rows move, the one that stands still is not away.
        longest: samples at most.
        candidates: rows that are looked at; all if None. Those of all give the common movement.
    """
    levels, spreads, drifts = _levels(table)
    starts, number = np.arange(len(levels)), len(levels)
    away = np.isfinite(levels) & np.isfinite(spreads) & np.isfinite(drifts)
    away = away if candidates is None else away & candidates
    sides, weakest = np.ones_like(levels), np.full(levels.shape, np.inf)
    for samples in range(1, longest + 1):
        going_on = (starts + samples <= number) & away.any(axis=1)
        starts, away, sides, weakest = (part[going_on] for part in (starts, away, sides, weakest))
        if not len(starts):
            return
        moved = table.logs[starts + samples - 1] - levels[starts]
        usual = spreads[starts] + (samples + WINDOW / 2) * drifts[starts]
        movements = (moved - _common(moved, table.kinds)) / usual
        sides = np.sign(movements) if samples == 1 else sides
        with np.errstate(invalid="ignore"):
            away = away & (movements * sides > least) & (moved * sides > least / 2 * usual)
        weakest = np.minimum(weakest, movements * sides)
        at, rows = np.nonzero(away)
        yield Excursions(starts[at], rows, samples, weakest[at, rows], moved[at, rows])


def distances(table: NormTable, row: int, start: int) -> Array:
    """Return in each step how far a row is from its level before ``start``, in spreads; its drift is left out."""
    same = table.kinds == table.kinds[row]
    some = NormTable(table.logs[: start + 1, same], table.kinds[same], table.floors[same])
    levels, spreads, _ = _levels(some)
    moved = table.logs[:, same] - levels[start]
    place = int(same[:row].sum())
    movement: Array = (moved - _common(moved, some.kinds))[:, place] / spreads[start, place]
    return movement


def _levels(table: NormTable) -> tuple[Array, Array, Array]:
    """Return level, spread and drift a sample of each row before each step; NaN where too few samples are held."""
    centers, _, numbers = _recent(table.logs)
    levels = np.where(numbers >= SHOWN * WINDOW, centers, np.nan)
    moved = table.logs - levels
    _, deviations, numbers = _recent(moved - _common(moved, table.kinds))
    spreads = np.fmax(MAD_TO_SIGMA * deviations, table.floors)
    half = WINDOW // 2
    latest, _, _ = _recent(table.logs, half)
    drifts = np.full_like(levels, np.nan)
    change = latest[half:] - latest[:-half]
    drifts[half:] = np.abs(change - _common(change, table.kinds)) / half
    return levels, np.where(numbers >= LEAST_OF_SPREAD, spreads, np.nan), drifts


def _recent(values: Array, window: int = WINDOW) -> tuple[Array, Array, Array]:
    """Return median and median absolute deviation of the window before each step, and the number of samples in it."""
    padded = np.concatenate([np.full((window, values.shape[1]), np.nan), values])
    centers, deviations, numbers = (np.empty_like(values) for _ in range(3))
    width = max(1, BLOCK // (window * max(1, len(values))))
    for first in range(0, values.shape[1], width):
        rows = slice(first, first + width)
        windows = np.lib.stride_tricks.sliding_window_view(padded[:, rows], window, axis=0)[:-1]
        centers[:, rows] = medians(windows, 2)
        deviations[:, rows] = medians(np.abs(windows - centers[:, rows, None]), 2)
        numbers[:, rows] = np.isfinite(windows).sum(axis=2)
    return centers, deviations, numbers


def _common(moved: Array, kinds: Indices) -> Array:
    """Return the median of each step over the rows of each kind; 0 where there are too few."""
    common = np.zeros_like(moved)
    for kind in np.unique(kinds):
        rows = kinds == kind
        some = moved[:, rows]
        is_known = np.isfinite(some).sum(axis=1) >= FEWEST_ROWS
        if is_known.any():
            common[:, rows] = np.where(is_known, medians(some, 1), 0.0)[:, None]
    return common
