"""Precheck for inputs that are not normalized."""

from __future__ import annotations

from collections.abc import Iterator

from probe.core.checks.check import CheckFinding, NotApplicable
from probe.core.prechecks.precheck import Precheck
from probe.core.prechecks.trial import Trial

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
        """Yield the findings in a trial."""
        rows = [row for call in trial.calls for row in call.inputs]
        bad = [row for row in rows if row.rms > LARGE or (row.std > 0 and abs(row.mean) > FAR * row.std)]
        if bad and 2 * len(bad) > len(rows):
            row = bad[0]
            text = f"inputs have a mean of {row.mean:.3g} and a deviation of {row.std:.3g}"
            yield self.finding(text, {"mean": row.mean, "deviation": row.std, "root mean square": row.rms})

    def missing(self, trial: Trial) -> str | None:
        """Return why nothing can be judged."""
        return None if any(call.inputs for call in trial.calls) else NotApplicable("no floating-point inputs")
