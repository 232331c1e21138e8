"""Precheck for units at the limits of their function."""

from __future__ import annotations

from collections.abc import Iterator

from probe.core.checks.check import CheckFinding, NotApplicable
from probe.core.checks.places import listing
from probe.core.prechecks.precheck import Precheck
from probe.core.prechecks.trial import Trial

LIMITED = "Sigmoid", "Tanh"
MANY = 0.9


class SaturatedUnits(Precheck):
    """Report a sigmoid or hyperbolic tangent in the middle of a model with more than nine of ten outputs within a
    hundredth of a limit at the beginning: next to no gradient passes through it."""

    name = "saturated-units"
    title = "Units are saturated"
    why = "The layers before it are hardly trained."
    source = "https://proceedings.mlr.press/v9/glorot10a.html"
    sees = "outputs of modules that are sigmoids or hyperbolic tangents in the first forward"
    remedy = "Normalise the inputs, or begin with smaller weights in the layer before it."

    def judge(self, trial: Trial) -> Iterator[CheckFinding]:
        """Yield the findings in a trial."""
        seen = [row for row in trial.outputs if row.kind in LIMITED and row.hidden]
        rows = [row for row in seen if row.saturated > MANY]
        if rows:
            names = [row.name for row in rows]
            text = f"more than nine of ten outputs of {listing(names)} lie at a limit of the function"
            evidence = {"modules": len(rows), "of": len(seen), "share": max(row.saturated for row in rows)}
            yield self.finding(text, evidence, names)

    def missing(self, trial: Trial) -> str | None:
        """Return why nothing can be judged."""
        seen = any(row.kind in LIMITED for row in trial.outputs)
        return None if seen else NotApplicable("no sigmoid or hyperbolic tangent")
