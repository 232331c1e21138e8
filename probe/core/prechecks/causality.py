"""Prechecks for models of tokens: what the outputs of a repeated forward depend on, and the labels."""

from __future__ import annotations

from collections.abc import Iterator

from probe.core.checks.check import CheckFinding, NotApplicable
from probe.core.checks.token_losses import CopiedLabels, ReadsAhead
from probe.core.language import message
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

    name, title, why = ReadsAhead.name, ReadsAhead.title, ReadsAhead.why
    source, remedy = ReadsAhead.source, ReadsAhead.remedy
    sees = "outputs of a repeated forward whose last tokens were replaced, and the labels of the loss"

    def judge(self, trial: Trial) -> Iterator[CheckFinding]:
        tried = trial.causality
        if tried is None or not any(call.relation == "next" for call in trial.losses) or not tried.leak > LEAST_LEAK:
            return
        text = message(
            "the labels are the next tokens, and the outputs of the first {from_tokens} positions change "
            "by {value:.3g} % of the change at the end when only later tokens are replaced: the model "
            "sees what it is to predict",
            from_tokens=tried.from_tokens,
            value=100 * tried.leak,
        )
        yield self.finding(text, {"leak": tried.leak, "positions": tried.from_tokens})

    def missing(self, trial: Trial) -> str | None:
        if not any(call.relation == "next" for call in trial.losses):
            return NotApplicable("no loss whose labels are the next tokens")
        return None if trial.causality is not None else trial.unseen.get(self.name, "the model was not called again")


class UnshiftedLabels(Precheck):
    """Report a causal model whose labels are the tokens that it gets at the same positions: it learns to copy them, and
    the loss falls to nothing.

    A model that sees both sides may be an autoencoder: a note.
    """

    name, title, why = CopiedLabels.name, CopiedLabels.title, CopiedLabels.why
    source, remedy = CopiedLabels.source, CopiedLabels.remedy
    sees = "the tokens that the model gets, the labels of the loss, and a repeated forward"

    def judge(self, trial: Trial) -> Iterator[CheckFinding]:
        calls = [call for call in trial.losses if call.classes and call.rows > 1]
        if not calls or any(call.relation != "same" for call in calls):
            return
        is_causal = trial.causality is not None and trial.causality.leak <= LEAST_LEAK
        text = message("the labels of the loss are the tokens that the model gets at the same positions")
        yield self.finding(text, {"calls": len(calls)}, grade="warning" if is_causal else "note")

    def missing(self, trial: Trial) -> str | None:
        seen = trial.causality is not None and any(call.classes for call in trial.losses)
        return None if seen else NotApplicable("no model of tokens with a loss over classes")


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
        if trial.causality is not None and trial.causality.mixed > LEAST_LEAK:
            text = message("the outputs for a sample change when only another sample of the batch is changed")
            yield self.finding(text, {"change": trial.causality.mixed})

    def missing(self, trial: Trial) -> str | None:
        return None if trial.causality is not None else NotApplicable("no model of tokens")
