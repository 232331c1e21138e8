"""Precheck for a module whose output has another dtype than those at the same place in other blocks."""

from __future__ import annotations

from collections.abc import Iterator

from probe.core.checks.check import CheckFinding, NotApplicable
from probe.core.checks.dtype_unlike import DtypeUnlike, unlike_ones
from probe.core.checks.places import listing
from probe.core.prechecks.precheck import Precheck
from probe.core.prechecks.trial import Trial


class OutputDtype(Precheck):
    """Report modules with parameters whose output is in float32, while that at the same place in other blocks is in
    half precision."""

    name = DtypeUnlike.name
    title = DtypeUnlike.title
    why = "The module costs time and memory, and its numbers differ from those of the same layer elsewhere."
    source = DtypeUnlike.source
    sees = "dtypes of the outputs of modules in the first forward"
    remedy = DtypeUnlike.remedy

    def judge(self, trial: Trial) -> Iterator[CheckFinding]:
        """Yield the findings in a trial."""
        unlike = [*unlike_ones(_dtypes(trial))]
        if unlike:
            text = f"the output of {listing(unlike)} is in float32, that at the same place in other blocks is not"
            yield self.finding(text, {"modules": len(unlike)}, unlike)

    def missing(self, trial: Trial) -> str | None:
        """Return why nothing can be judged."""
        if not trial.outputs:
            return "no output of a module was seen"
        dtypes = {dtype.rpartition(".")[2] for dtype in _dtypes(trial).values()}
        return None if dtypes & {"float16", "bfloat16"} else NotApplicable("no half precision")


def _dtypes(trial: Trial) -> dict[str, str]:
    return {row.name: row.dtype for row in trial.outputs if row.dtype}
