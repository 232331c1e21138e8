"""Precheck for outputs that depend on other samples of the batch."""

from __future__ import annotations

from collections.abc import Iterator

from probe.core.checks.check import CheckFinding, NotApplicable
from probe.core.prechecks.not_causal import LEAST_LEAK
from probe.core.prechecks.precheck import Precheck
from probe.core.prechecks.trial import Trial


class SamplesMixed(Precheck):
    """Note a model of tokens whose outputs for one sample change in evaluation mode when another sample does.

    A view in place of a transpose does this; so does routing with a capacity, which is legitimate.
    """

    name = "samples-mixed"
    title = "Samples are mixed"
    why = "Each prediction depends on the other samples of its batch, which are others in use."
    grade = "note"
    source = "https://karpathy.github.io/2019/04/25/recipe/"
    sees = "outputs of a repeated forward in which one sample was changed"
    remedy = "Look for a view or reshape where axes should be transposed, and for a mean over the batch."

    def judge(self, trial: Trial) -> Iterator[CheckFinding]:
        """Yield the findings in a trial."""
        if trial.causality is not None and trial.causality.mixed > LEAST_LEAK:
            text = "the outputs for a sample change when only another sample of the batch is changed"
            yield self.finding(text, {"change": trial.causality.mixed})

    def missing(self, trial: Trial) -> str | None:
        """Return why nothing can be judged."""
        return None if trial.causality is not None else NotApplicable("no model of tokens")
