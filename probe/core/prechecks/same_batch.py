"""Precheck for a batch that comes again and again."""

from __future__ import annotations

from collections.abc import Iterator

from probe.core.checks.check import CheckFinding
from probe.core.prechecks.precheck import Precheck
from probe.core.prechecks.trial import Trial

FEWEST = 3


class SameBatch(Precheck):
    """Note a model that gets the same inputs at every update, as training on a full batch and a test of overfitting
    do."""

    name = "same-batch"
    title = "Same batch"
    why = "The model learns one batch by heart."
    grade = "note"
    source = "https://karpathy.github.io/2019/04/25/recipe/"
    sees = "digests of the inputs of each outermost forward"
    remedy = "Take the next batch of the iterator in each step; next(iter(loader)) begins again each time."

    def judge(self, trial: Trial) -> Iterator[CheckFinding]:
        """Yield the findings in a trial."""
        if self.missing(trial) is None and len({call.digest for call in trial.calls}) == 1:
            updates = len({call.update for call in trial.calls})
            yield self.finding(f"the model gets the same inputs in {updates} updates", {"updates": updates})

    def missing(self, trial: Trial) -> str | None:
        """Return why nothing can be judged."""
        updates = {call.update for call in trial.calls}
        return None if len(updates) >= FEWEST else f"inputs were seen in fewer than {FEWEST} updates"
