"""An update on its way to the thread that judges it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from probe.core.checks.check import JudgedUpdate
from probe.core.checks.update_facts import Array, Mask, UpdateFacts
from probe.core.records import Outcome
from probe.core.sentinel.device_numbers import Factor, value_of
from probe.core.sentinel.own_gradients import TakenGradients
from probe.core.sentinel.rota import RotaReading


class ReadUpdate(NamedTuple):
    """An update that has ended, whose numbers may still be on their way to the host."""

    facts: UpdateFacts
    outcome: Outcome
    looked: RotaReading | None
    roots: Sequence[Callable[[], float]]
    """Functions that wait for the value of each root."""
    leftover: Callable[[], bool] | None = None
    """Function that waits for whether gradients that nothing was seen to clear had numbers before the backward; None if
    each was seen to be cleared."""
    dropped: Callable[[], tuple[str, ...]] = tuple
    """Function that waits for the names of the parameters whose gradients were not finite and were dropped."""
    own_sums: Callable[[], Array] | None = None
    """Function that waits for the sum of each gradient over what the backwards have returned; None if just that is
    applied, or if gradients stay with parameters."""
    clips: Sequence[tuple[Sequence[int], Factor]] = ()
    """Clips, each with the positions of the gradients and the factor by which they were multiplied."""
    measured: Sequence[Sequence[int]] = ()
    """Positions of gradients whose norms were taken before they were clipped."""
    late_clips: Sequence[Factor] = ()
    """Factors by which gradients that the last update had applied were clipped after it, before any backward."""
    early_clips: Sequence[Factor] = ()
    """Factors by which gradients were clipped to which a later backward has added."""
    steps: Callable[[], int] | int | None = None
    """Steps that the optimizer's state has counted before this update, or a function that waits for them."""
    own: TakenGradients | None = None
    """Gradients of this rank before any reduction; None if none are looked at."""

    def judged(self) -> JudgedUpdate:
        """Return the update with its numbers; wait for the device."""
        facts = self.facts
        gradients = facts.gradients.read() if facts.gradients.read is not None else np.empty((0, 2))
        loss = math.fsum(values) if all(map(math.isfinite, values := self._roots())) else sum(values)
        marks = facts.gradients
        if self.leftover is not None and not self.leftover():
            marks = marks._replace(again=np.zeros_like(marks.again))
        clip, clips = self._clips(len(facts.names))
        facts = facts._replace(
            outcome=self.outcome,
            gradients=marks,
            values=None if self.looked is None else self.looked.values(),
            loss=loss if values else math.nan,
            loss_seen=bool(values),
            dropped=self.dropped(),
            own_sums=None if self.own_sums is None else self.own_sums(),
            clip=clip,
            clips=clips,
            clipped_late=any(value_of(factor) < 1 for factor in self.late_clips),
            early_clips=sum(value_of(factor) < 1 for factor in self.early_clips),
            state_steps=self.steps() if callable(self.steps) else self.steps,
        )
        return JudgedUpdate(facts, gradients)

    def _roots(self) -> list[float]:
        return [root() for root in self.roots]

    def _clips(self, number: int) -> tuple[float, Array | None]:
        """Return the least factor by which gradients were clipped, and that of each gradient after its norm was taken;
        1 and None if none was clipped."""
        if not self.clips:
            return 1.0, None
        clipped = [(positions, value_of(factor)) for positions, factor in self.clips]
        every, factor = clipped[0]
        if len(clipped) == 1 and len(every) == number and [*self.measured] == [every]:
            return factor, np.full(number, factor)
        factors: dict[int, float] = {}
        for positions, factor in clipped:
            for position in positions:
                factors[position] = factors.get(position, 1.0) * factor
        clips = np.ones(number)
        for positions in self.measured:
            clips[list(positions)] = [factors.get(position, 1.0) for position in positions]
        return min(factors.values()), clips


def unscaled_norms(
    wait: Callable[[], Array], places: Sequence[int], is_scaled: Mask | None, number: int
) -> Callable[[], Array]:
    """Return a function that waits for sums of squares and sums, and returns norms and sums of all gradients.

    Args:
        wait: waits for a row for each of ``places``, and perhaps one with a factor.
        places: position of each row among the gradients; -1 if it is out of date.
        is_scaled: rows that have the factor in the last one; None if there is none.
        number: number of the gradients.
    """

    def read() -> Array:
        sums = wait()
        if is_scaled is None and len(places) == number and places == [*range(number)]:
            whole = np.empty((number, 2))
            np.sqrt(sums[:, 1], out=whole[:, 0])
            whole[:, 1] = sums[:, 0]
            return whole
        rows = np.column_stack((np.sqrt(sums[: len(places), 1]), sums[: len(places), 0]))
        if is_scaled is not None:
            rows[is_scaled] /= sums[-1, 0]
        whole = np.full((number + 1, 2), np.nan)
        whole[np.asarray(places, np.int64)] = rows
        return whole[:-1]

    return read
