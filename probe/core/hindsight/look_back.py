"""Search of the row that stood out before an incident, and how often as much stands out before other steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from probe.core.hindsight.excursions import (
    WINDOW,
    Array,
    Excursions,
    Indices,
    Mask,
    NormTable,
    distances,
    excursions,
)
from probe.core.hindsight.onset import RARE, Onset
from probe.core.hindsight.shipped_chances import shipped_chances

LOOKED = 50
"""Latest samples before an incident in which its cause is sought."""
CONTROLS = 200
"""Other steps before which the same search is made; where there are fewer, healthy recordings stand for the rest."""
AS_MUCH = 0.75
"""Part of a distance that is as much as it, within the noise of both."""
ENOUGH = 20
"""Such steps of a run whose own share is a lower bound."""
HELD = 400
"""Samples up to an incident that are held for both."""
SAMPLES = 3
"""Samples for which a row must be away, up to the incident."""
AWAY = 4.0
"""Distance from its level, in spreads, from which on a row is away."""
BEGINS = 1.5
"""Distance from which on it was leaving, in the samples just before."""
FIRST = WINDOW + SAMPLES - 1
"""Index of the first sampled step before which anything can stand out."""


class Standout(NamedTuple):
    """Row that stood out before an incident."""

    row: int
    start: int
    """Index of the sampled step in which it left its level."""
    factor: float
    """Latest norm over its level."""
    chance: float
    """Share of other steps before which as much stands out."""


@dataclass(frozen=True)
class Search:
    """Search for the cause of an incident in the rows before it.

    The last line of the table is that of the incident itself, as far as its numbers are finite, else as it was before.
    """

    table: NormTable
    candidates: Mask
    """Rows that lie upstream of what failed."""
    order: Indices
    """Position of each row in the order of cause, which decides between rows that leave in one step."""
    healthy: Mask
    """Steps before which the same search shows what is usual."""
    shipped: Callable[[Array, int], Array] = shipped_chances
    """Function that returns, for strengths and a number of rows, the shares of steps of healthy recordings."""

    @property
    def looked(self) -> int:
        """Number of samples that can be looked at before the incident; 0 if the history is too short."""
        number = len(self.table.logs) - WINDOW
        return min(LOOKED, number) if number >= SAMPLES and self.table.logs.shape[1] else 0

    def answer(self, names: Sequence[str], signals: Sequence[str], steps: Sequence[int]) -> Onset:
        """Return the answer in names of the rows and numbers of the sampled steps."""
        standout = self.standout()
        if standout is None:
            return Onset(self.looked)
        return Onset(
            self.looked,
            where=names[standout.row],
            signal=signals[standout.row],
            step=int(steps[standout.start]),
            samples=len(self.table.logs) - standout.start,
            factor=standout.factor,
            chance=standout.chance,
        )

    def standout(self, end: int = -1) -> Standout | None:
        """Return the row that most rarely stands out as it did, of such rows the first to leave; None if there is none,
        or if as much is usual.

        Args:
            end: index of the sampled step of the incident; the last if negative.
        """
        if not self.looked:
            return None
        end = len(self.table.logs) - 1 if end < 0 else end
        lasting = [some.where(some.ends == end) for some in self.long]
        rows = _rows_of(lasting)
        # one that has been away for longer than is looked back has nothing to do with it
        rows = np.setdiff1d(rows, _rows_of([some for some in lasting if some.samples > LOOKED]))
        if not len(rows):
            return None
        starts, strengths, factors = _of_rows(lasting, len(self.candidates))
        chances = self._chances(strengths[rows], int(starts[rows].min()))
        if chances.min() > RARE:
            return None
        row = int(min(rows[chances == chances.min()], key=lambda n: (starts[n], self.order[n])))
        start = self._beginning(row, int(starts[row]), end, factors[row] > 0)
        return Standout(row, start, float(np.exp(factors[row])), float(chances.min()))

    @cached_property
    def long(self) -> list[Excursions]:
        """Excursions of three samples, of four, and so on."""
        every = excursions(self.table, AWAY, LOOKED + 1, self.candidates)
        return [some for some in every if some.samples >= SAMPLES]

    @cached_property
    def usual(self) -> Array:
        """Greatest distance of a row that has been away up to each sampled step; 0 if none is."""
        greatest = np.zeros(len(self.table.logs))
        for some in self.long:
            np.maximum.at(greatest, some.ends, some.weakest)
        return greatest

    def _chances(self, strengths: Array, until: int) -> Array:
        """Return for each strength the share of other steps before which something is as strong.

        Args:
            until: first sampled step that belongs to the incident.
        """
        healthy_steps = self.usual[FIRST:until][self.healthy[FIRST:until]]
        missing = max(0, CONTROLS - len(healthy_steps))
        shipped = self.shipped(strengths, int(self.candidates.sum()))
        number = (healthy_steps[None, :] >= AS_MUCH * strengths[:, None]).sum(axis=1)
        chances: Array = (1 + number + np.floor(missing * shipped)) / (1 + max(CONTROLS, len(healthy_steps)))
        # healthy recordings do not outweigh what this run does again and again
        return np.maximum(chances, number / len(healthy_steps)) if len(healthy_steps) >= ENOUGH else chances

    def _beginning(self, row: int, start: int, end: int, upwards: bool) -> int:
        """Return the step in which a row that is away from ``start`` on began to leave."""
        beyond = (1 if upwards else -1) * distances(self.table, row, start) > BEGINS
        while start > max(WINDOW, end - LOOKED) and beyond[start - 1]:
            start -= 1
        return start


def _rows_of(some: Sequence[Excursions]) -> Indices:
    """Return the rows of excursions, each once."""
    return np.unique(np.concatenate([excursion.rows for excursion in some])) if some else np.empty(0, np.int64)


def _of_rows(lasting: Sequence[Excursions], number: int) -> tuple[Indices, Array, Array]:
    """Return first step, greatest strength and factor of each of ``number`` rows."""
    starts, strengths, factors = np.full(number, -1), np.zeros(number), np.zeros(number)
    for some in lasting:  # those of more samples come later
        starts[some.rows] = some.starts
        factors[some.rows] = some.factors
        strengths[some.rows] = np.maximum(strengths[some.rows], some.weakest)
    return starts, strengths, factors
