"""Precheck for a loss of logarithms of probabilities that gets something else."""

from __future__ import annotations

from collections.abc import Iterator

from probe.core.checks.check import CheckFinding, NotApplicable
from probe.core.prechecks.precheck import Precheck
from probe.core.prechecks.trial import Trial

WRONG = {"nll_loss": ("probabilities", "numbers", "sigmoid"), "kl_div": ("probabilities",)}
"""Loss functions, each with the forms of scores that it must not get."""


class NotLogProbabilities(Precheck):
    """Report a negative log likelihood or a Kullback-Leibler divergence that gets probabilities in place of their
    logarithms, and a negative log likelihood of scores whose exponentials do not sum to 1 over the classes: it falls
    without a bound as the scores grow."""

    name = "not-log-probabilities"
    title = "No logarithms of probabilities"
    why = "The loss has no minimum: it falls without learning."
    source = "https://docs.pytorch.org/docs/stable/generated/torch.nn.NLLLoss.html"
    sees = "the scores that each loss function gets"
    remedy = "Use log_softmax over the classes, or cross_entropy on the scores before it."

    def judge(self, trial: Trial) -> Iterator[CheckFinding]:
        """Yield the findings in a trial."""
        for function, forms in WRONG.items():
            calls = [call for call in trial.losses if call.function == function and call.rows > 1]
            if calls and all(call.form in forms for call in calls):
                form = "the probabilities" if calls[0].form == "probabilities" else "scores that are none"
                text = f"{function} expects logarithms of probabilities, and gets {form}"
                yield self.finding(text, {"calls": len(calls), "loss": calls[0].value})

    def missing(self, trial: Trial) -> str | None:
        """Return why nothing can be judged."""
        seen = any(call.function in WRONG for call in trial.losses)
        return None if seen else NotApplicable("no loss of logarithms of probabilities")
