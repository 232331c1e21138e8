"""Prechecks for parameters: their numbers before training, and their first gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import ClassVar

from probe.core.checks.check import CheckFinding, NotApplicable
from probe.core.checks.first_numbers import CONVENTIONS, AlikeUnits, BeginsWrong, Convention, alike, no_factors, unusual
from probe.core.checks.gradient_fades import EXTREME, FEWEST, falls
from probe.core.checks.places import ancestors, listing, module_of
from probe.core.language import message
from probe.core.prechecks.precheck import NO_UPDATE, Precheck, RankPrecheck
from probe.core.prechecks.trial import ParameterFacts, Trial, finite


class Initialisation(Precheck):
    """Report parameters with a name that many models share all of whose numbers begin alike, outside the range for it:
    the bias of the time step of a state space model.

    A pair of low-rank factors that are both 0 is reported, too: no gradient reaches either.
    """

    name, title, why = BeginsWrong.name, BeginsWrong.title, BeginsWrong.why
    source, remedy = BeginsWrong.source, BeginsWrong.remedy
    sees = "the numbers of each parameter before the first update"

    def judge(self, trial: Trial) -> Iterator[CheckFinding]:
        for convention in CONVENTIONS:
            rows = [row for row in _named(trial, convention) if convention.most < row.least == row.most]
            if rows:
                names = [row.name for row in rows]
                text = unusual(convention, names, rows[0].most)
                yield self.finding(text, {"value": rows[0].most, "most": convention.most}, names)
        yield from self._factors(trial)

    def _factors(self, trial: Trial) -> Iterator[CheckFinding]:
        """Yield a finding about low-rank factors that are both 0."""
        zero = {row.name for row in trial.parameters if not row.least and not row.most}
        names = [name for name in zero if "lora_A" in name and name.replace("lora_A", "lora_B") in zero]
        if names:
            text = no_factors(sorted(names))
            yield self.finding(text, {"pairs": len(names)}, sorted(names))

    def missing(self, trial: Trial) -> str | None:
        if not trial.parameters:
            return NO_UPDATE
        seen = any(_named(trial, convention) for convention in CONVENTIONS)
        return None if seen or any("lora_A" in row.name for row in trial.parameters) else NotApplicable("no such name")


def _named(trial: Trial, convention: Convention) -> list[ParameterFacts]:
    return [row for row in trial.parameters if row.name.rpartition(".")[2] == convention.end]


LAYERS = "Linear", "Conv1d", "Conv2d", "Conv3d", "Bilinear"


class SymmetricUnits(Precheck):
    """Report linear maps and convolutions that begin with the same weights, not 0, for every output: their units get
    the same gradient and stay alike.

    Weights that are all 0 are left out: branches may begin at 0.
    """

    name, title, why = AlikeUnits.name, AlikeUnits.title, AlikeUnits.why
    source, remedy = AlikeUnits.source, AlikeUnits.remedy
    sees = "the numbers of each parameter before the first update"

    def judge(self, trial: Trial) -> Iterator[CheckFinding]:
        rows = [row for row in trial.parameters if row.kind in LAYERS and row.equal_rows and (row.least or row.most)]
        if rows:
            names = [row.name for row in rows]
            yield self.finding(alike(names), {"parameters": len(rows), "weight": rows[0].most}, names)

    def missing(self, trial: Trial) -> str | None:
        return None if trial.parameters else NO_UPDATE


SPARSE = "Embedding", "EmbeddingBag"


class _GradientDepth(Precheck):
    """Base of the prechecks of the gradients of weights, from the last layer to the first."""

    source = "https://dl.acm.org/doi/10.1109/ICSE43902.2021.00043"
    sees = "root mean square of the gradient of each weight at the first updates, in the order of calls"
    vanishing: ClassVar[bool]
    """True if gradients are reported that fall towards the first layer; False for those that grow."""

    def judge(self, trial: Trial) -> Iterator[CheckFinding]:
        rows = _weights(trial)
        if len(rows) < FEWEST:
            return
        sizes = [_size(row) for row in rows]
        last, first = sizes[-1], sizes[0]
        factors = [last / size if self.vanishing else size / last for size in sizes]
        if factors[0] <= EXTREME or not falls(sizes if self.vanishing else sizes[::-1]):
            return
        names = [module_of(row.name) for row, factor in zip(rows, factors, strict=True) if factor > EXTREME]
        word = message("smaller" if self.vanishing else "larger")
        text = message(
            "the gradient of {names} is more than {extreme:,.0f} times {word} than that of {name}",
            names=listing(names),
            extreme=EXTREME,
            word=word,
            name=rows[-1].name,
        )
        yield self.finding(text, {"first": first, "last": last, "layers": len(rows)}, names)

    def missing(self, trial: Trial) -> str | None:
        if len(_weights(trial)) >= FEWEST:
            return None
        return NotApplicable(f"fewer than {FEWEST} layers with a gradient") if trial.parameters else NO_UPDATE


class VanishingGradient(_GradientDepth):
    """Report a model in which the gradient of the first weight is less than a ten-thousandth of that of the last one
    from the beginning, and falls from layer to layer.

    Gradients that are exactly 0, as behind branches that begin at 0, are left out.
    """

    name = "vanishing gradient"
    title = "Gradient vanishes"
    why = "The first layers stay as they were initialised."
    remedy = "Use rectifiers, residual connections or normalisation between the layers, and weights scaled to them."
    vanishing = True


class ExplodingGradient(_GradientDepth):
    """Report a model in which the gradient of the first weight is more than ten thousand times that of the last one
    from the beginning, and grows from layer to layer."""

    name = "exploding gradient"
    title = "Gradient explodes"
    why = "The first layers move by far more than the last, and the run diverges."
    remedy = "Begin with smaller weights, scaled to the width of their inputs, and normalise between the layers."
    vanishing = False


def _weights(trial: Trial) -> list[ParameterFacts]:
    """Return the weights with a gradient that is not 0, in the order of calls."""
    rows = [row for row in trial.parameters if row.order >= 0 and len(row.shape) > 1 and row.kind not in SPARSE]
    return sorted((row for row in rows if _size(row) > 0), key=lambda row: row.order)


def _size(row: ParameterFacts) -> float:
    """Return the largest root mean square of the gradient of a weight in the first updates."""
    return max(finite(row.gradients), default=0.0) / math.sqrt(max(1, math.prod(row.shape)))


class ReplicasApart(RankPrecheck):
    """Report parameters that differ between ranks before the first update, though all ranks apply the same gradient to
    them: they are replicas, and stay apart.

    Gradients are the same if their norms are equal to the last digit. Parts of divided parameters have gradients of
    their own.
    """

    name = "replicas-differ"
    title = "Replicas begin apart"
    why = "Ranks average gradients of different models, and none of these is trained."
    source = "https://horovod.readthedocs.io/en/stable/pytorch.html"
    sees = "digest of each parameter before the first update and norm of its gradient, on each rank"
    remedy = "Broadcast the parameters from one rank, or seed all ranks alike before the model is made."

    def compare(self, trials: Sequence[Trial]) -> Iterator[CheckFinding]:
        ranks = [{row.name: row for row in trial.parameters} for trial in trials]
        names = [name for name in (ranks[0] if ranks else ()) if all(name in rows for rows in ranks)]
        replicas = [name for name in names if len(ranks) > 1 and _is_replica([rows[name] for rows in ranks])]
        apart = [name for name in replicas if len({rows[name].digest for rows in ranks}) > 1]
        if apart and 2 * len(replicas) > len(names):
            where = ancestors(apart, names)
            text = message(
                "{where}: ranks begin with different numbers, and apply the same gradient to them", where=listing(where)
            )
            yield self.finding(text, {"parameters": len(apart), "of": len(names)}, where, between=trials)

    def missing(self, trial: Trial) -> str | None:
        if trial.world < 2:
            return NotApplicable("there is one rank")
        return None if trial.parameters else NO_UPDATE


def _is_replica(rows: Sequence[ParameterFacts]) -> bool:
    """Return whether all ranks have the numbers of a parameter, and the same gradient at the first update."""
    norms = {row.gradients[:1] for row in rows}
    return all(row.digest for row in rows) and len(norms) == 1 and all(norm > 0 for norm in next(iter(norms)))
