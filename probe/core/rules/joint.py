"""Judgement of the rows of a step together: one statistic for each kind of signal, and the rows that it is about."""

from __future__ import annotations

from math import log
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from probe.core.records import Array, Batch
from probe.core.robust import COMMON_ROWS, MAD_TO_SIGMA, Indices
from probe.core.rules.family import FLOORS, GRADIENTS, OUTPUTS, STAYS, Family, Scores
from probe.core.rules.history import LIMIT
from probe.core.rules.tails import KINDS, chances, discoveries, limits

Mask = npt.NDArray[np.bool_]

WINDOW = 32
"""Samples that the tails were estimated with: a window is no shorter."""
QUIET = 10
"""Normal samples after which the next leap is another episode."""
FAR = log(4.0)
"""Movement of all gradients together, as a logarithm, that is another stage of training if it stays."""
MOST, FALSE = 3, 0.05
"""Rows of an episode that are reported; and the part of them that may be healthy."""
EDGE = 3
"""Rows on each side of a step along the order of execution, at least."""
CLEAN = 4.0
"""Size of such a step, in robust standard deviations within its two sides."""


class JointLeap(NamedTuple):
    """Rows of a batch that began an episode."""

    at: Indices
    """Places in the batch, in the order of execution."""
    values: Array
    expected: Array
    """Medians of the window."""

    def where(self, mask: Mask) -> JointLeap:
        """Return some of the rows."""
        return JointLeap(self.at[mask], self.values[mask], self.expected[mask])


class JointJudge:
    """Judge of the norms of all rows of a step together.

    The largest residual of a step (see :class:`Family`) is compared with the tail of healthy training. A leap is
    reported once: not before ten samples have been normal is the next one another episode.

    Args:
        warnings: warnings in 10,000 healthy steps.
    """

    def __init__(self, window: int, warnings: float) -> None:
        self._window, self._warnings = max(window, WINDOW), warnings
        self._families: dict[str, Family] = {}
        self._least = {name: min(min(limits(name, 1, alone, warnings)) for alone in (True, False)) for name in FLOORS}
        """Least limit of each signal, whatever the number of its rows."""
        self._odd = -1
        """Step whose activations are of another size than before."""
        self._far: dict[str, int] = {}
        """Number of samples in a row in which all gradients of a signal have been far from their past."""
        self._normal: dict[str, tuple[int, int]] = {}
        """By kind of signal: the step that was judged last, and the number of normal samples before it."""

    def judge(self, batch: Batch) -> JointLeap | None:
        """Return the leap that begins with this batch; None if there is none."""
        least = self._least.get(batch.signal, 0.0)
        scores = self.scores(batch, least)
        if scores is None or scores.largest < least:  # mostly, and quicker
            self._begins(KINDS.get(batch.signal, ""), batch.step, False)
            return None
        excess = self.excess(batch.signal, scores)
        if not self._begins(KINDS[batch.signal], batch.step, float(np.fmax.reduce(excess)) > 1):
            return None
        at = suspects(batch, scores, excess)
        return JointLeap(at, batch.op("norm")[at], scores.centres[at])

    def scores(self, batch: Batch, least: float = 0.0) -> Scores | None:
        """Return the scores of the rows, and hold them; None if none of them is judged, or can be beyond ``least``."""
        if batch.signal not in FLOORS or "sumsq" not in batch.columns or not len(batch):
            return None
        family = self._families.get(batch.signal)
        if family is None:
            family = self._families[batch.signal] = Family(batch.signal, self._window, LIMIT // len(FLOORS))
        if batch.step == self._odd and batch.signal not in OUTPUTS:
            return None
        scores = family.judge(batch, least, FAR)
        self._odd = batch.step if family.is_odd else self._odd
        if family.is_another_stage:
            self._begin(family)
        if scores is None or not scores.rows:
            self._far[batch.signal] = 0
            return None
        if batch.signal in GRADIENTS and self._is_another_stage(batch.signal, scores):
            family.begin()
            self._begin(family)
            return None
        return scores

    def _begin(self, but: Family) -> None:
        """Begin another history of all signals but one."""
        for family in self._families.values():
            if family is not but:
                family.begin()

    def _is_another_stage(self, signal: str, scores: Scores) -> bool:
        """Return whether all gradients have moved far and stay there, as with other data: no row is to blame."""
        far = self._far.get(signal, 0) + 1 if abs(scores.movement) > FAR else 0
        self._far[signal] = far % STAYS
        return far >= STAYS

    def excess(self, signal: str, scores: Scores) -> Array:
        """Return the size of each residual relative to its limit."""
        limit = limits(signal, scores.rows, scores.is_alone, self._warnings)
        excess: Array = scores.sizes / np.where(scores.residuals > 0, limit.above, limit.below)
        return excess

    def _begins(self, kind: str, step: int, leaps: bool) -> bool:
        """Count a sample; return whether an episode begins with it."""
        before, normal = self._normal.get(kind, (step, QUIET))
        if step < before:  # a rollback
            normal = QUIET
        if leaps:
            self._normal[kind] = step, 0
            return normal >= QUIET
        self._normal[kind] = step, normal + (step != before)
        return False


def suspects(batch: Batch, scores: Scores, excess: Array) -> Indices:
    """Return the rows to name, in the order of execution.

    Rows that left the others are detected by their residuals. But if most rows have moved, it is a sound row that has
    left them: so those are named that have moved against their own past. Beside rows beyond the limit, those after the
    first of them are listed whose residuals are rare among so many rows: they choose no episode.
    """
    order = np.argsort(batch.order, kind="stable")
    order = order[~np.isnan(scores.residuals[order])]
    movements = scores.movements[order]
    first = _step_along(movements, scores.spreads[order])
    if first is not None:
        beside: Indices = order[_beside(movements, first, batch.signal)]
        return beside
    residuals, spreads = scores.residuals[order], scores.spreads[order]
    has_moved = np.abs(movements) >= 0.5 * np.abs(residuals)
    accused = (excess[order] > 1) & has_moved
    if not accused.any():
        accused = np.abs(movements) >= 0.5 * np.abs(movements).max()
    named = np.flatnonzero(accused)[:MOST]
    rare = discoveries(chances(batch.signal, residuals, spreads, scores.is_alone), FALSE) & has_moved & ~accused
    rare[: named[0]] = False
    rows: Indices = order[np.sort([*named, *np.flatnonzero(rare)[: MOST - len(named)]])]
    return rows


def _step_along(movements: Array, spreads: Array) -> int | None:
    """Place before which rows have moved otherwise than from it on; None if nothing steps there."""
    number = len(movements)
    if number < COMMON_ROWS:
        return None
    sums = np.cumsum(movements)[:-1]
    sizes = np.arange(1, number)
    gaps = (sums / sizes - (sums[-1] + movements[-1] - sums) / (number - sizes)) ** 2 * sizes * (number - sizes)
    place = EDGE + int(np.argmax(gaps[EDGE - 1 : number - EDGE]))
    sides = movements[:place], movements[place:]
    middles = [float(np.median(side)) for side in sides]
    within = np.concatenate([np.abs(side - middle) for side, middle in zip(sides, middles, strict=True)])
    gap = abs(middles[0] - middles[1])
    noise = max(MAD_TO_SIGMA * float(np.median(within)), float(np.median(spreads)))
    is_step = gap > CLEAN * noise and gap > 2 * float(np.quantile(within, 0.9))
    return place if is_step else None


def _beside(movements: Array, place: int, signal: str) -> Indices:
    """Places of the first rows that have moved of the side that has.

    Gradients of parameters may be in the order of the parameters, against that of the backward: there the rows next to
    the step are the first.
    """
    before, after = (float(np.median(side)) for side in (movements[:place], movements[place:]))
    is_after = abs(after) >= abs(before)
    side, middle = (np.arange(place, len(movements)), after) if is_after else (np.arange(place), before)
    side = side[movements[side] * np.sign(middle) >= 0.5 * abs(middle)]
    nearest: Indices = side[-MOST:] if signal in GRADIENTS and not is_after else side[:MOST]
    return nearest
