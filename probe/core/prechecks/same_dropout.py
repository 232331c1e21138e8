"""Precheck for ranks that draw the same random numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from probe.core.checks.check import CheckFinding, NotApplicable
from probe.core.prechecks.precheck import RankPrecheck
from probe.core.prechecks.trial import Trial


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
        """Yield the findings between the trials of several ranks."""
        rows = [trial for trial in trials if trial.data_parallel and trial.dropout]
        if len(rows) > 1 and len({trial.dropout for trial in rows}) == 1:
            text = f"the random generators of {len(rows)} ranks are in the same state: dropout hides the same units"
            ranks = tuple(trial.rank for trial in rows)
            yield self.finding(text, {"ranks": len(rows)})._replace(ranks=ranks)

    def missing(self, trial: Trial) -> str | None:
        """Return why nothing can be judged."""
        if trial.world < 2 or not trial.data_parallel:
            return NotApplicable("no data-parallel ranks")
        return None if trial.dropout else NotApplicable("no active dropout")
