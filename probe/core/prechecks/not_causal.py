"""Precheck for a decoder whose outputs depend on later tokens."""

from __future__ import annotations

from collections.abc import Iterator

from probe.core.checks.check import CheckFinding, NotApplicable
from probe.core.prechecks.precheck import Precheck
from probe.core.prechecks.trial import Trial

LEAST_LEAK = 1e-3
"""Change before the replaced tokens, by the change at them, above which it is no rounding."""


class NotCausal(Precheck):
    """Report a model that is trained to predict the next token and sees it: when the last tokens are replaced, its
    outputs before them change.

    The model is called again in evaluation mode, so that dropout and batch statistics have no part in it. Models whose
    labels are not the next tokens, such as those of masked ones, may see both sides.
    """

    name = "not-causal"
    title = "Sees the next token"
    why = "The loss falls to nothing, and the model cannot generate."
    source = "https://github.com/huggingface/transformers/issues/48745"
    sees = "outputs of a repeated forward whose last tokens were replaced, and the labels of the loss"
    remedy = "Apply a causal mask in every layer that mixes positions, and pass is_causal or the mask to the attention."

    def judge(self, trial: Trial) -> Iterator[CheckFinding]:
        """Yield the findings in a trial."""
        tried = trial.causality
        if tried is None or not any(call.relation == "next" for call in trial.losses) or not tried.leak > LEAST_LEAK:
            return
        text = (
            f"the labels are the next tokens, and the outputs of the first {tried.from_tokens} positions change by "
            f"{100 * tried.leak:.3g} % of the change at the end when only later tokens are replaced: the model sees "
            "what it is to predict"
        )
        yield self.finding(text, {"leak": tried.leak, "positions": tried.from_tokens})

    def missing(self, trial: Trial) -> str | None:
        """Return why nothing can be judged."""
        if not any(call.relation == "next" for call in trial.losses):
            return NotApplicable("no loss whose labels are the next tokens")
        return None if trial.causality is not None else trial.unseen.get(self.name, "the model was not called again")
