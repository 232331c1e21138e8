"""Prechecks for what models get, on one rank and on several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from probe.core.checks.check import CheckFinding, NotApplicable
from probe.core.language import message
from probe.core.prechecks.precheck import Precheck, RankPrecheck
from probe.core.prechecks.trial import Trial

FEWEST = 3
"""Least number of forwards, and of updates, whose inputs are compared."""


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
        if self.missing(trial) is None and len({call.digest for call in trial.calls}) == 1:
            updates = len({call.update for call in trial.calls})
            yield self.finding(
                message("the model gets the same inputs in {updates} updates", updates=updates),
                {"updates": updates},
            )

    def missing(self, trial: Trial) -> str | None:
        updates = {call.update for call in trial.calls}
        return (
            None
            if len(updates) >= FEWEST
            else message("inputs were seen in fewer than {fewest} updates", fewest=FEWEST)
        )


FAR, LARGE = 5.0, 30.0


class UnnormalizedInputs(Precheck):
    """Note inputs whose mean is more than five deviations from 0, or whose root mean square is above 30, as pixels from
    0 to 255 have."""

    name = "unnormalized-inputs"
    title = "Inputs not normalized"
    why = "The first layer needs another rate than all others."
    grade = "note"
    source = "https://cs231n.github.io/neural-networks-2/"
    sees = "mean and deviation of the floating-point inputs of each outermost forward"
    remedy = "Subtract the mean of the training data and divide by its deviation."

    def judge(self, trial: Trial) -> Iterator[CheckFinding]:
        rows = [row for call in trial.calls for row in call.inputs]
        bad = [row for row in rows if row.rms > LARGE or (row.std > 0 and abs(row.mean) > FAR * row.std)]
        if bad and 2 * len(bad) > len(rows):
            row = bad[0]
            text = message("inputs have a mean of {mean:.3g} and a deviation of {std:.3g}", mean=row.mean, std=row.std)
            yield self.finding(text, {"mean": row.mean, "deviation": row.std, "root mean square": row.rms})

    def missing(self, trial: Trial) -> str | None:
        return None if any(call.inputs for call in trial.calls) else NotApplicable("no floating-point inputs")


class SameDropout(RankPrecheck):
    """Report data-parallel ranks whose random generators are in the same state when a model with dropout is called
    first: each hides the same units."""

    name = "same-dropout"
    title = "Same dropout on ranks"
    why = "A larger batch averages less noise away than it should."
    source = "https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/core/tensor_parallel/random.py"
    sees = "state of the random generators at the first forward of a model with active dropout, on each rank"
    grade = "note"  # trainers seed all ranks alike: Hugging Face's does
    remedy = "After the model is made, seed each data-parallel rank with a number of its own."

    def compare(self, trials: Sequence[Trial]) -> Iterator[CheckFinding]:
        rows = [trial for trial in trials if trial.data_parallel and trial.dropout]
        if len(rows) > 1 and len({trial.dropout for trial in rows}) == 1:
            text = message(
                "the random generators of {rows} ranks are in the same state: dropout hides the same units",
                rows=len(rows),
            )
            yield self.finding(text, {"ranks": len(rows)}, between=rows)

    def missing(self, trial: Trial) -> str | None:
        if trial.world < 2 or not trial.data_parallel:
            return NotApplicable("no data-parallel ranks")
        return None if trial.dropout else NotApplicable("no active dropout")


class SameInputs(RankPrecheck):
    """Report data-parallel ranks whose models get the same inputs at every update, though these change."""

    name = "same-data"
    title = "Same data on ranks"
    why = "All ranks but one compute what is known already."
    source = "https://github.com/NVlabs/LongLive/issues/71"
    sees = "digests of the inputs of each outermost forward, on each rank"
    remedy = "Divide the samples among the ranks, with a DistributedSampler or a seed of its own for each rank."

    def compare(self, trials: Sequence[Trial]) -> Iterator[CheckFinding]:
        rows = [trial for trial in trials if self.missing(trial) is None]
        digests = {tuple(call.digest for call in trial.calls) for trial in rows}
        if len(rows) > 1 and len(digests) == 1 and len({*next(iter(digests))}) >= FEWEST:
            text = message("the models of {rows} ranks get the same inputs at every update", rows=len(rows))
            yield self.finding(text, {"ranks": len(rows)}, between=rows)

    def missing(self, trial: Trial) -> str | None:
        if trial.world < 2 or not trial.data_parallel:
            return NotApplicable("no data-parallel ranks")
        return None if len(trial.calls) >= FEWEST else "the inputs of too few forwards were seen"
