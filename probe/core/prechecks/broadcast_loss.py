"""Precheck for a loss that compares every score with every label."""

from __future__ import annotations

from collections.abc import Iterator

from probe.core.checks.check import CheckFinding
from probe.core.prechecks.precheck import NO_LOSS, Precheck
from probe.core.prechecks.trial import Trial


class BroadcastLoss(Precheck):
    """Report a loss whose scores and labels have shapes such as (N, 1) and (N,): each score is compared with all
    labels, and the model learns their mean."""

    name = "broadcast-loss"
    title = "Labels are broadcast"
    why = "The model predicts the mean of all labels, and a warning is the only sign."
    source = "https://discuss.pytorch.org/t/38443"
    sees = "shapes of the scores and labels that each loss function gets"
    remedy = "Give both the same shape, with squeeze(-1) or unsqueeze(-1)."

    def judge(self, trial: Trial) -> Iterator[CheckFinding]:
        """Yield the findings in a trial."""
        calls = [call for call in trial.losses if call.broadcast]
        if calls:
            text = f"{calls[0].function} gets scores and labels of different shapes, and compares all with all"
            yield self.finding(text, {"calls": len(calls), "labels": calls[0].rows})

    def missing(self, trial: Trial) -> str | None:
        """Return why nothing can be judged."""
        return None if trial.losses else NO_LOSS
