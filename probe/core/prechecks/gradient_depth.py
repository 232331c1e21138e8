"""Prechecks for gradients that vanish or explode on their way to the first layers."""

from __future__ import annotations

import math
from collections.abc import Iterator

from probe.core.checks.check import CheckFinding, NotApplicable
from probe.core.checks.gradient_fades import EXTREME, FEWEST, falls
from probe.core.checks.places import listing, module_of
from probe.core.prechecks.precheck import Precheck
from probe.core.prechecks.trial import ParameterFacts, Trial, finite

SPARSE = "Embedding", "EmbeddingBag"


class VanishingGradient(Precheck):
    """Report a model in which the gradient of the first weight is less than a ten-thousandth of that of the last one
    from the beginning, and falls from layer to layer.

    Gradients that are exactly 0, as behind branches that begin at 0, are left out.
    """

    name = "vanishing gradient"
    title = "Gradient vanishes"
    why = "The first layers stay as they were initialised."
    source = "https://dl.acm.org/doi/10.1109/ICSE43902.2021.00043"
    sees = "root mean square of the gradient of each weight at the first updates, in the order of calls"
    remedy = "Use rectifiers, residual connections or normalisation between the layers, and weights scaled to them."

    def judge(self, trial: Trial) -> Iterator[CheckFinding]:
        """Yield the findings in a trial."""
        yield from _judged(self, trial, vanishing=True)

    def missing(self, trial: Trial) -> str | None:
        """Return why nothing can be judged."""
        return _missing(trial)


class ExplodingGradient(Precheck):
    """Report a model in which the gradient of the first weight is more than ten thousand times that of the last one
    from the beginning, and grows from layer to layer."""

    name = "exploding gradient"
    title = "Gradient explodes"
    why = "The first layers move by far more than the last, and the run diverges."
    source = "https://dl.acm.org/doi/10.1109/ICSE43902.2021.00043"
    sees = "root mean square of the gradient of each weight at the first updates, in the order of calls"
    remedy = "Begin with smaller weights, scaled to the width of their inputs, and normalise between the layers."

    def judge(self, trial: Trial) -> Iterator[CheckFinding]:
        """Yield the findings in a trial."""
        yield from _judged(self, trial, vanishing=False)

    def missing(self, trial: Trial) -> str | None:
        """Return why nothing can be judged."""
        return _missing(trial)


def _judged(check: Precheck, trial: Trial, vanishing: bool) -> Iterator[CheckFinding]:
    rows = _weights(trial)
    if len(rows) < FEWEST:
        return
    sizes = [_size(row) for row in rows]
    last, first = sizes[-1], sizes[0]
    factor = last / first if vanishing else first / last
    if factor <= EXTREME or not falls(sizes if vanishing else sizes[::-1]):
        return
    small = [
        row for row, size in zip(rows, sizes, strict=True) if (last / size if vanishing else size / last) > EXTREME
    ]
    names = [module_of(row.name) for row in small]
    word = "smaller" if vanishing else "larger"
    text = f"the gradient of {listing(names)} is more than {EXTREME:,.0f} times {word} than that of {rows[-1].name}"
    yield check.finding(text, {"first": first, "last": last, "layers": len(rows)}, names)


def _weights(trial: Trial) -> list[ParameterFacts]:
    """Return the weights with a gradient that is not 0, in the order of calls."""
    rows = [row for row in trial.parameters if row.order >= 0 and len(row.shape) > 1 and row.kind not in SPARSE]
    return sorted((row for row in rows if _size(row) > 0), key=lambda row: row.order)


def _size(row: ParameterFacts) -> float:
    """Return the largest root mean square of the gradient of a weight in the first updates."""
    return max(finite(row.gradients), default=0.0) / math.sqrt(max(1, math.prod(row.shape)))


def _missing(trial: Trial) -> str | None:
    if len(_weights(trial)) >= FEWEST:
        return None
    return NotApplicable(f"fewer than {FEWEST} layers with a gradient") if trial.parameters else "no update was seen"
