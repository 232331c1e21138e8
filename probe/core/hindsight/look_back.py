"""Search of the row that stood out before an incident, and how often as much stands out before other steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from probe.core.hindsight.excursions import (
    WINDOW,
    Array,
    Excursions,
    Indices,
    Mask,
    RowTable,
    distances,
    excursions,
)
from probe.core.hindsight.onset import RARE, Onset
from probe.core.hindsight.shipped_chances import shipped_chance

LOOKED = 50
"""Latest samples before an incident in which its cause is sought."""
CONTROLS = 200
"""Other steps before which the same search is made; fewer are made up by those of healthy recordings."""
HELD = 400
"""Samples before an incident from which such steps are taken, at most."""
SAMPLES = 3
"""Samples for which a row must be away, up to the incident."""
AWAY = 4.0
"""Distance from its level, in spreads, from which on a row is away."""
BEGINS = 1.5
"""Distance from which on it was leaving, in the samples just before."""
FIRST = WINDOW + SAMPLES - 1
"""Number of samples before the first that can be judged so."""


class Standout(NamedTuple):
    """Row that stood out before an incident."""

    row: int
    start: int
    """Index of the sampled step at which it left its level."""
    factor: float
    """Latest norm over its level."""
    chance: float
    """Share of other steps before which as much stands out."""


class Search(NamedTuple):
    """Rows in which the cause of an incident is sought. Their last line is that of the incident itself, as far as it is
    finite there, and as it was before where it is not."""

    table: RowTable
    candidates: Mask
    """Rows that lie upstream of what failed."""
    order: Indices
    """Position of each row in the order of cause, for those that leave in one step."""
    healthy: Mask
    """Steps before which the same search says what is usual."""

    @property
    def looked(self) -> int:
        """Number of samples that can be looked at before the incident; 0 if the history is too short."""
        number = len(self.table.logs) - WINDOW
        return min(LOOKED, number) if number >= SAMPLES and self.table.logs.shape[1] else 0

    def answer(self, names: Sequence[str], signals: Sequence[str], steps: Sequence[int]) -> Onset:
        """Return the answer in words of the rows and the sampled steps."""
        found = self.standout()
        if found is None:
            return Onset(self.looked)
        return Onset(
            self.looked,
            where=names[found.row],
            signal=signals[found.row],
            step=int(steps[found.start]),
            samples=len(self.table.logs) - found.start,
            factor=found.factor,
            chance=found.chance,
        )

    def standout(self) -> Standout | None:
        """Return the row that stood out and most rarely does, of these the first to leave; None if there is none, or if
        as much is usual."""
        if not self.looked:
            return None
        usual, lasting = np.zeros(len(self.table.logs)), list[Excursions]()
        for some in excursions(self.table, AWAY, LOOKED + 1, self.candidates):
            if some.samples >= SAMPLES:
                ends = some.starts + some.samples - 1
                np.maximum.at(usual, ends, some.weakest)
                lasting.append(some.where(ends == len(usual) - 1))
        rows = np.unique(np.concatenate([some.rows for some in lasting])) if lasting else np.empty(0, np.int64)
        if not len(rows):
            return None
        starts, strengths, factors = _of_rows(lasting, len(self.candidates))
        chances = self._chances(strengths[rows], usual, int(starts[rows].min()))
        rarest = rows[chances == chances.min()]
        row = int(min(rarest, key=lambda one: (starts[one], self.order[one])))
        if chances.min() > RARE:
            return None
        start = self._beginning(row, int(starts[row]), factors[row] > 0)
        return Standout(row, start, float(np.exp(factors[row])), float(chances.min()))

    def _chances(self, strengths: Array, usual: Array, until: int) -> Array:
        """Return for each strength the share of other steps before which something is as strong.

        Args:
            usual: greatest strength before each step.
            until: first step that belongs to the incident.
        """
        own = usual[:until][FIRST:][self.healthy[:until][FIRST:]]
        missing = max(0, CONTROLS - len(own))
        rows = int(self.candidates.sum())
        found = (own[None, :] >= strengths[:, None]).sum(axis=1) + missing * shipped_chance(strengths, rows)
        chances: Array = (1 + np.floor(found)) / (1 + max(CONTROLS, len(own)))
        return chances

    def _beginning(self, row: int, start: int, upwards: bool) -> int:
        """Return the step in which a row that is away from ``start`` on began to leave."""
        side = 1 if upwards else -1
        beyond = side * distances(self.table, row, start) > BEGINS
        while start > WINDOW and len(beyond) - start <= LOOKED and beyond[start - 1]:
            start -= 1
        return start


def _of_rows(lasting: list[Excursions], number: int) -> tuple[Indices, Array, Array]:
    """Return first step, greatest strength and factor of each of ``number`` rows."""
    starts, strengths, factors = np.full(number, -1), np.zeros(number), np.zeros(number)
    for some in lasting:  # those of more samples come later
        starts[some.rows] = some.starts
        factors[some.rows] = some.factors
        strengths[some.rows] = np.maximum(strengths[some.rows], some.weakest)
    return starts, strengths, factors
