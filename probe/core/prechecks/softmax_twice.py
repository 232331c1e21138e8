"""Precheck for a loss that applies a function to what the same function has returned."""

from __future__ import annotations

from collections.abc import Iterator

from probe.core.checks.check import CheckFinding, NotApplicable
from probe.core.prechecks.precheck import Precheck
from probe.core.prechecks.trial import LossCall, Trial

APPLIES = (
    ("cross_entropy", "probabilities", "softmax"),
    ("binary_cross_entropy_with_logits", "sigmoid", "sigmoid"),
    ("binary_cross_entropy_with_logits", "probabilities", "softmax"),
)
"""Loss functions, each with a form of scores that it must not get, and the function that makes scores of that form."""
LEAST_ROWS = 2


class SoftmaxTwice(Precheck):
    """Report a cross entropy that gets probabilities, or a binary one with logits that gets what a sigmoid returned:
    both apply that function themselves, and the gradient nearly vanishes."""

    name = "softmax-twice"
    title = "Softmax applied twice"
    why = "The model learns slowly, and its loss stays far above what it could be."
    source = "https://karpathy.github.io/2019/04/25/recipe/"
    sees = "the scores that each loss function gets"
    remedy = "Pass the scores before the softmax or sigmoid to the loss, or use the loss that takes probabilities."

    def judge(self, trial: Trial) -> Iterator[CheckFinding]:
        """Yield the findings in a trial."""
        for function, form, applied in APPLIES:
            calls = [call for call in trial.losses if call.function == function and call.rows >= LEAST_ROWS]
            if calls and all(call.form == form for call in calls):
                text = f"{function} gets what a {applied} has returned, and applies a function of the kind itself"
                yield self.finding(text, _evidence(calls))
                return

    def missing(self, trial: Trial) -> str | None:
        """Return why nothing can be judged."""
        functions = {function for function, _, _ in APPLIES}
        seen = any(call.function in functions and call.rows >= LEAST_ROWS for call in trial.losses)
        return None if seen else NotApplicable("no loss that applies a softmax or sigmoid")


def _evidence(calls: list[LossCall]) -> dict[str, float]:
    return {"calls": len(calls), "loss": calls[0].value, "classes": calls[0].classes}
