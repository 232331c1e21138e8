"""Precheck for a loss that is a sum over the batch."""

from __future__ import annotations

import math
from collections.abc import Iterator

from probe.core.checks.check import CheckFinding
from probe.core.prechecks.precheck import NO_LOSS, Precheck
from probe.core.prechecks.trial import Trial

CLOSE = 1e-3


class SummedLoss(Precheck):
    """Note a backward whose root is a loss that is summed over the batch: a batch twice as large has twice the
    gradient, and the rate must fit the size of the batch."""

    name = "summed-loss"
    title = "Loss is summed"
    why = "The rate fits one size of batch alone."
    grade = "note"
    source = "https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html"
    sees = "the reduction and the value of each loss, and the root of each backward"
    remedy = "Take the mean, or divide by the number of labels of all micro batches and ranks."

    def judge(self, trial: Trial) -> Iterator[CheckFinding]:
        """Yield the findings in a trial."""
        roots = [value for update in trial.accumulations for value in update.values]
        for call in trial.losses:
            is_root = any(math.isclose(call.value, root, rel_tol=CLOSE) for root in roots)
            if call.reduction == "sum" and call.rows > 1 and is_root:
                text = f"{call.function} is summed over {call.rows} labels, and the sum is the loss"
                yield self.finding(text, {"loss": call.value, "labels": call.rows})
                return

    def missing(self, trial: Trial) -> str | None:
        """Return why nothing can be judged."""
        return None if trial.losses else NO_LOSS
