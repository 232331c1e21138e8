"""Precheck for units that are off for the whole batch."""

from __future__ import annotations

from collections.abc import Iterator

from probe.core.checks.check import CheckFinding, NotApplicable
from probe.core.checks.places import listing
from probe.core.prechecks.precheck import Precheck
from probe.core.prechecks.trial import Trial

RECTIFIERS = "ReLU", "ReLU6"
MANY = 0.9


class DeadUnits(Precheck):
    """Report a rectifier in the middle of a model whose outputs are all 0 at the beginning, and note one with more than
    nine of ten."""

    name = "dead layer"
    title = "Units are off"
    why = "No gradient passes through a unit that is off for every input."
    source = "https://arxiv.org/abs/1903.06733"
    sees = "outputs of modules that are rectifiers in the first forward"
    remedy = "Look at the initialisation and the bias of the layer before it, and at the scale of the inputs."

    def judge(self, trial: Trial) -> Iterator[CheckFinding]:
        """Yield the findings in a trial."""
        seen = [row for row in trial.outputs if row.kind in RECTIFIERS and row.hidden]
        dead = [row.name for row in seen if row.zeros == 1]
        many = [row.name for row in seen if MANY < row.zeros < 1]
        if dead:
            text = f"all outputs of {listing(dead)} are 0: no gradient passes through it"
            yield self.finding(text, {"modules": len(dead), "of": len(seen)}, dead)
        elif many:
            text = f"more than nine of ten outputs of {listing(many)} are 0"
            yield self.finding(text, {"modules": len(many), "of": len(seen)}, many, grade="note")

    def missing(self, trial: Trial) -> str | None:
        """Return why nothing can be judged."""
        return None if any(row.kind in RECTIFIERS for row in trial.outputs) else NotApplicable("no rectifier")
