"""Precheck for ranks that get the same batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from probe.core.checks.check import CheckFinding, NotApplicable
from probe.core.prechecks.precheck import RankPrecheck
from probe.core.prechecks.trial import Trial

FEWEST = 3


class SameInputs(RankPrecheck):
    """Report data-parallel ranks whose models get the same inputs at every update, though these change."""

    name = "same-data"
    title = "Same data on ranks"
    why = "All ranks but one compute what is known already."
    source = "https://github.com/NVlabs/LongLive/issues/71"
    sees = "digests of the inputs of each outermost forward, on each rank"
    remedy = "Divide the samples among the ranks, with a DistributedSampler or a seed of its own for each rank."

    def compare(self, trials: Sequence[Trial]) -> Iterator[CheckFinding]:
        """Yield the findings between the trials of several ranks."""
        rows = [trial for trial in trials if self.missing(trial) is None]
        digests = {tuple(call.digest for call in trial.calls) for trial in rows}
        if len(rows) > 1 and len(digests) == 1 and len({*next(iter(digests))}) >= FEWEST:
            text = f"the models of {len(rows)} ranks get the same inputs at every update"
            ranks = tuple(trial.rank for trial in rows)
            yield self.finding(text, {"ranks": len(rows)})._replace(ranks=ranks)

    def missing(self, trial: Trial) -> str | None:
        """Return why nothing can be judged."""
        if trial.world < 2 or not trial.data_parallel:
            return NotApplicable("no data-parallel ranks")
        return None if len(trial.calls) >= FEWEST else "the inputs of too few forwards were seen"
