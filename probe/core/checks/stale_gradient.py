"""Check for gradients that nothing clears between updates."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from probe.core.checks.check import CheckFinding, JudgedUpdate
from probe.core.checks.loop_check import FactCheck
from probe.core.checks.places import ancestors
from probe.core.checks.streak import Share, Streak
from probe.core.checks.update_facts import Array, Mask, count_of, is_any
from probe.core.language import message

UPDATES = 3
MOST, LATEST = 12, 18
"""Updates among the latest, where some of them clear the gradients."""
ALIKE = 1e-3
"""Difference of two sums of a gradient, as a part of its norm, up to which they are equal but for rounding."""


class StaleGradient(FactCheck):
    """Report that updates apply again what the update before has applied.

    At least half of the gradients count, in three applied updates in a row, or in 12 of the latest 18: what another
    optimizer's backward has left behind, as in a GAN, is not what this one has applied. A gradient is again the old one
    from the second update on.
    Where a program adds up what backwards return, the sum of a gradient shows it.
    """

    name = "stale-gradient"
    title = "Gradients not cleared"
    why = "Each update applies the sum of all gradients so far: the rate grows with every step."
    source = "https://stackoverflow.com/questions/60335387"
    sees = "identities and versions of the gradients at each update, or the sums of what a program adds up; no wait"
    remedy = "Call optimizer.zero_grad() once an update, before the first backward or after the step."
    lacks = "no second update with a gradient was applied"

    def __init__(self) -> None:
        super().__init__()
        self._streak, self._share = Streak(UPDATES), Share(MOST, LATEST)
        self._last: Array | None = None
        """Norm and sum of each gradient that the update before has applied."""

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        facts = update.facts
        present, again = facts.gradients.there, facts.gradients.again
        if facts.outcome != "applied" or not is_any(present):
            return
        if facts.own_sums is not None:
            present, again = self._added(update.gradients, facts.own_sums)
        self._last = update.gradients
        number, count = count_of(present), count_of(present & again)
        self.judged = True
        is_stale = 2 * count >= number > 0
        in_a_row, often = self._streak.completes(is_stale, facts.step), self._share.completes(is_stale, facts.step)
        if not in_a_row and (not often or self._streak.count > UPDATES):
            return
        stale = [name for name, is_old in zip(facts.names, present & again, strict=True) if is_old]
        where = () if count == number else ancestors(stale, facts.names)
        text = message(
            "{count} of {number} gradients still hold what the update before has applied, in {updates} updates "
            "in a row: nothing clears them",
            count=count,
            number=number,
            updates=UPDATES,
        )
        if not in_a_row:
            text = message(
                "{count} of {number} gradients still hold what the update before has applied, in {updates} of the last "
                "{latest} updates: they are cleared too rarely",
                count=count,
                number=number,
                updates=MOST,
                latest=LATEST,
            )
        since = self._streak.since if in_a_row else self._share.since
        yield self.finding(facts, since, text, {"gradients": number, "stale": count}, where)

    def _added(self, rows: Array, sums: Array) -> tuple[Mask, Mask]:
        """Return two masks: the gradients whose sums can be compared, and of these the stale ones: they equal the
        gradient of the update before plus ``sums``, the sum of what the backwards have returned since."""
        last = self._last
        if last is None or last.shape != rows.shape or len(rows) != len(sums):
            return np.zeros(len(sums), np.bool_), np.zeros(len(sums), np.bool_)
        with np.errstate(invalid="ignore"):
            size = ALIKE * np.fmax(rows[:, 0], last[:, 0])
            decidable = (np.abs(last[:, 1]) > 10 * size) & np.isfinite(sums) & np.isfinite(rows).all(axis=1)
            return decidable, decidable & (np.abs(rows[:, 1] - sums - last[:, 1]) <= size)
