"""Precheck for micro batches whose mean losses are added."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from probe.core.checks.check import CheckFinding, NotApplicable
from probe.core.prechecks.precheck import NO_LOSS, Precheck
from probe.core.prechecks.trial import Accumulation, LossCall, Trial

CLOSE = 1e-3
"""Relative difference between a loss and the root of its backward at most."""


class UndividedAccumulation(Precheck):
    """Report an update from several micro batches of one size whose mean losses are added and not averaged: the
    gradient is as many times too large.

    Adam and its like without clipping hardly notice it: then it is a note.
    """

    name = "undivided-accumulation"
    title = "Accumulation is not divided"
    why = "The gradient is as many times too large as there are micro batches."
    source = "https://github.com/huggingface/transformers/issues/35438"
    sees = "the reduction, labels and value of each loss, the root of each backward, and gradients before the update"
    remedy = "Divide each loss by the number of micro batches, or by the number of labels of all of them."

    def judge(self, trial: Trial) -> Iterator[CheckFinding]:
        """Yield the findings in a trial."""
        rows = [
            (update, calls)
            for number, update in enumerate(trial.accumulations)
            if len(update.values) > 1 and (calls := _calls_of(trial, number))
        ]
        is_steady = all(len(update.values) != 1 for update in trial.accumulations)
        if len(rows) < 2 or not is_steady or not all(_is_undivided(update, calls) for update, calls in rows):
            return
        update, calls = rows[0]
        number = len(update.values)
        text = f"an update adds the mean losses of {number} micro batches, which are not divided by their number"
        evidence = {"micro batches": number, "loss": update.values[0]}
        yield self.finding(text, evidence, grade="note" if update.normalises else "warning")

    def missing(self, trial: Trial) -> str | None:
        """Return why nothing can be judged."""
        if not any(len(update.values) > 1 for update in trial.accumulations):
            return NotApplicable("one backward in each update")
        return None if trial.losses else NO_LOSS


def _calls_of(trial: Trial, update: int) -> list[LossCall]:
    return [call for call in trial.losses if call.update == update]


def _is_undivided(update: Accumulation, calls: Sequence[LossCall]) -> bool:
    """Return whether each root is the mean loss of other labels, by one function of one size."""
    if update.divided_later or len(calls) != len(update.values):
        return False
    alike = {(call.function, call.classes, call.rows, call.reduction) for call in calls}
    different = {call.labels for call in calls}
    if len(alike) > 1 or calls[0].reduction != "mean" or not calls[0].classes or len(different) < len(calls):
        return False
    pairs = zip(update.values, calls, strict=True)
    return all(math.isclose(root, call.value, rel_tol=CLOSE) for root, call in pairs)
