"""Precheck for weights whose units are all alike."""

from __future__ import annotations

from collections.abc import Iterator

from probe.core.checks.check import CheckFinding
from probe.core.checks.places import listing
from probe.core.prechecks.precheck import Precheck
from probe.core.prechecks.trial import Trial

LAYERS = "Linear", "Conv1d", "Conv2d", "Conv3d", "Bilinear"


class SymmetricUnits(Precheck):
    """Report linear maps and convolutions that begin with the same weights, not 0, for every output: their units get
    the same gradient and stay alike.

    Weights that are all 0 are left out: branches may begin at 0.
    """

    name = "symmetric-units"
    title = "Units are alike"
    why = "The layer has the power of a single unit."
    source = "https://www.deeplearningbook.org/contents/optimization.html"
    sees = "the numbers of each parameter before the first update"
    remedy = "Initialise the weights with random numbers."

    def judge(self, trial: Trial) -> Iterator[CheckFinding]:
        """Yield the findings in a trial."""
        rows = [row for row in trial.parameters if row.kind in LAYERS and row.equal_rows and (row.least or row.most)]
        if rows:
            names = [row.name for row in rows]
            text = f"{listing(names)}: every output begins with the same weights, so that its units stay alike"
            yield self.finding(text, {"parameters": len(rows), "weight": rows[0].most}, names)

    def missing(self, trial: Trial) -> str | None:
        """Return why nothing can be judged."""
        return None if trial.parameters else "no update was seen"
