"""Precheck for a loss of logarithms of probabilities that gets something else."""

from __future__ import annotations

from collections.abc import Iterator

from probe.core.checks.check import CheckFinding, NotApplicable
from probe.core.prechecks.precheck import Precheck
from probe.core.prechecks.trial import Trial

FUNCTIONS = "nll_loss", "kl_div"


class NotLogProbabilities(Precheck):
    """Report a negative log likelihood or a Kullback-Leibler divergence that gets probabilities in place of their
    logarithms: it has no lower bound at the right answer."""

    name = "not-log-probabilities"
    title = "No logarithms of probabilities"
    source = "https://docs.pytorch.org/docs/stable/generated/torch.nn.NLLLoss.html"
    sees = "the scores that each loss function gets"
    remedy = "Use log_softmax in place of softmax, or cross_entropy on the scores before it."

    def judge(self, trial: Trial) -> Iterator[CheckFinding]:
        """Yield the findings in a trial."""
        for function in FUNCTIONS:
            calls = [call for call in trial.losses if call.function == function and call.rows > 1]
            if calls and all(call.form == "probabilities" for call in calls):
                text = f"{function} expects logarithms of probabilities, and gets the probabilities"
                yield self.finding(text, {"calls": len(calls), "loss": calls[0].value})

    def missing(self, trial: Trial) -> str | None:
        """Return why nothing can be judged."""
        seen = any(call.function in FUNCTIONS for call in trial.losses)
        return None if seen else NotApplicable("no loss of logarithms of probabilities")
