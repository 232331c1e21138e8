"""Precheck for parameters that begin outside the range that their name stands for."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from probe.core.checks.check import CheckFinding, NotApplicable
from probe.core.checks.places import listing
from probe.core.prechecks.precheck import Precheck
from probe.core.prechecks.trial import ParameterFacts, Trial


class Convention(NamedTuple):
    """Number below which parameters of a name begin."""

    end: str
    """Last part of the name."""
    most: float
    meaning: str


CONVENTIONS = (
    Convention(
        "dt_bias", math.log(math.expm1(0.5)), "bias of a time step, whose softplus begins between 0.001 and 0.1"
    ),
)
"""Names that public models share, with the number below which these parameters begin."""


class Initialisation(Precheck):
    """Report parameters with a name that many models share all of whose numbers begin alike, outside the range for it:
    the bias of the time step of a state space model.

    A pair of low-rank factors that are both 0 is reported, too: no gradient reaches either.
    """

    name = "initialisation"
    title = "Beginning of a parameter"
    why = "The model trains, and ends worse than its reference."
    source = "https://github.com/fla-org/flash-linear-attention/issues/739"
    sees = "the numbers of each parameter before the first update"
    remedy = "Initialise it as the reference does; look whether a generic initialisation comes after the model's own."

    def judge(self, trial: Trial) -> Iterator[CheckFinding]:
        """Yield the findings in a trial."""
        for convention in CONVENTIONS:
            rows = [row for row in _named(trial, convention) if convention.most < row.least == row.most]
            if rows:
                names = [row.name for row in rows]
                text = (
                    f"{listing(names)}: all numbers begin at {rows[0].most:.3g}, where they should differ and be below "
                    f"{convention.most:.3g}: {convention.meaning}"
                )
                yield self.finding(text, {"value": rows[0].most, "most": convention.most}, names)
        yield from self._factors(trial)

    def _factors(self, trial: Trial) -> Iterator[CheckFinding]:
        """Yield a finding about low-rank factors that are both 0."""
        zero = {row.name for row in trial.parameters if not row.least and not row.most}
        names = [name for name in zero if "lora_A" in name and name.replace("lora_A", "lora_B") in zero]
        if names:
            text = f"{listing(sorted(names))}: both low-rank factors begin at 0, so that no gradient reaches either"
            yield self.finding(text, {"pairs": len(names)}, sorted(names))

    def missing(self, trial: Trial) -> str | None:
        """Return why nothing can be judged."""
        if not trial.parameters:
            return "no update was seen"
        seen = any(_named(trial, convention) for convention in CONVENTIONS)
        return None if seen or any("lora_A" in row.name for row in trial.parameters) else NotApplicable("no such name")


def _named(trial: Trial, convention: Convention) -> list[ParameterFacts]:
    return [row for row in trial.parameters if row.name.rpartition(".")[2] == convention.end]
