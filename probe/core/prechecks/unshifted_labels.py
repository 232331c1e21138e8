"""Precheck for a decoder that is trained to repeat its input."""

from __future__ import annotations

from collections.abc import Iterator

from probe.core.checks.check import CheckFinding, NotApplicable
from probe.core.prechecks.not_causal import LEAST_LEAK
from probe.core.prechecks.precheck import Precheck
from probe.core.prechecks.trial import Trial


class UnshiftedLabels(Precheck):
    """Report a causal model whose labels are the tokens that it gets at the same positions: it learns to copy them, and
    the loss falls to nothing.

    A model that sees both sides may be an autoencoder: a note.
    """

    name = "unshifted-labels"
    title = "Labels equal inputs"
    why = "The model learns to copy its input, with a very good loss."
    source = "https://github.com/huggingface/transformers/issues/32944"
    sees = "the tokens that the model gets, the labels of the loss, and a repeated forward"
    remedy = "Shift the labels by one: compare the output at each position with the next token."

    def judge(self, trial: Trial) -> Iterator[CheckFinding]:
        """Yield the findings in a trial."""
        calls = [call for call in trial.losses if call.classes and call.rows > 1]
        if not calls or any(call.relation != "same" for call in calls):
            return
        is_causal = trial.causality is not None and trial.causality.leak <= LEAST_LEAK
        text = "the labels of the loss are the tokens that the model gets at the same positions"
        yield self.finding(text, {"calls": len(calls)}, grade="warning" if is_causal else "note")

    def missing(self, trial: Trial) -> str | None:
        """Return why nothing can be judged."""
        seen = trial.causality is not None and any(call.classes for call in trial.losses)
        return None if seen else NotApplicable("no model of tokens with a loss over classes")
