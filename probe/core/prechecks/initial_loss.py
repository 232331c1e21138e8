"""Precheck for a loss that begins far from that of a guess."""

from __future__ import annotations

import math
from collections.abc import Iterator

from probe.core.checks.check import CheckFinding
from probe.core.prechecks.precheck import NO_CLASSES, Precheck
from probe.core.prechecks.trial import Trial

ABOVE, FAR_ABOVE, BELOW = 3.0, 30.0, 0.02


class InitialLoss(Precheck):
    """Note a mean cross entropy that begins above three times that of an even guess, the logarithm of the number of
    classes, and report one above thirty times; note one that begins below a fiftieth.

    A model that was trained before begins below it.
    """

    name = "initial-loss"
    title = "Loss at the beginning"
    why = "The first hundreds of updates only undo the beginning, and the run may diverge in them."
    source = "https://karpathy.github.io/2019/04/25/recipe/"
    sees = "the first cross entropy and the number of classes"
    remedy = "Initialise the last layer with small weights; if it is tied to an embedding, give that a small deviation."

    def judge(self, trial: Trial) -> Iterator[CheckFinding]:
        """Yield the findings in a trial."""
        for call in trial.first_update():
            if call.function == "cross_entropy" and call.reduction == "mean" and call.classes > 1:
                guess = math.log(call.classes)
                evidence = {"loss": call.value, "guess": guess, "classes": call.classes}
                if call.value > ABOVE * guess:
                    text = f"the loss begins at {call.value:.3g}; that of a guess among {call.classes} is {guess:.3g}"
                    far = call.value > FAR_ABOVE * guess
                    yield self.finding(text, evidence, grade="warning" if far else "note")
                elif call.value < BELOW * guess and call.ignored < 1:
                    text = f"the loss begins at {call.value:.3g}, next to nothing, as if the labels were in the inputs"
                    yield self.finding(text, evidence, grade="note")
                return

    def missing(self, trial: Trial) -> str | None:
        """Return why nothing can be judged."""
        seen = any(call.function == "cross_entropy" and call.reduction == "mean" for call in trial.first_update())
        return None if seen else NO_CLASSES
