"""Precheck for labels that a loss ignores."""

from __future__ import annotations

from collections.abc import Iterator

from probe.core.checks.check import CheckFinding
from probe.core.prechecks.precheck import NO_CLASSES, Precheck
from probe.core.prechecks.trial import Trial

MANY = 0.9


class IgnoredLabels(Precheck):
    """Report a batch all of whose labels are ignored: its mean loss is NaN, its sum teaches nothing. Note one with more
    than nine of ten of them."""

    name = "ignored-labels"
    title = "Labels are ignored"
    why = "The loss is NaN, or the batch is spent on nothing."
    source = "https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html"
    sees = "the labels that each cross entropy gets"
    remedy = "Look at how labels are masked and truncated: a prompt that fills the context leaves no answer."

    def judge(self, trial: Trial) -> Iterator[CheckFinding]:
        """Yield the findings in a trial."""
        calls = [call for call in trial.losses if call.classes and call.rows > 1]
        every = [call for call in calls if call.ignored == 1]
        share = sum(call.ignored for call in calls) / max(1, len(calls))
        evidence = {"share": share, "batches": len(every), "of": len(calls)}
        if every:
            text = f"all labels are ignored in {len(every)} of {len(calls)} calls of the loss"
            yield self.finding(text, evidence, step=every[0].update)
        elif share > MANY:
            yield self.finding(f"{100 * share:.0f} % of the labels are ignored", evidence, grade="note")

    def missing(self, trial: Trial) -> str | None:
        """Return why nothing can be judged."""
        return None if any(call.classes for call in trial.losses) else NO_CLASSES
