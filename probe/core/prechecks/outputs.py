"""Prechecks for the outputs of modules in the first forward."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

from probe.core.checks.check import CheckFinding, Grade, NotApplicable
from probe.core.checks.dtype_unlike import DtypeUnlike, unlike_ones
from probe.core.checks.places import listing
from probe.core.language import message
from probe.core.prechecks.precheck import Precheck
from probe.core.prechecks.trial import OutputFacts, Trial

BLOCK = 10.0
"""Factor between the outputs of neighbouring blocks from which on they grow or vanish."""
EXTREME = 1e6
FEWEST = 3
"""Blocks of a list at least."""
RECTIFIERS = "ReLU", "ReLU6"
LIMITED = "Sigmoid", "Tanh"
MANY = 0.9
NUMBERED = re.compile(r"^(.*?)(\d+)$")


class ActivationGrowth(Precheck):
    """Note numbered blocks of one class whose outputs grow or shrink by more than ten times from each to the next, and
    report them where that comes to a factor of a million."""

    name = "activation-growth"
    title = "Activations grow or vanish"
    why = "A deeper model, or half precision, overflows."
    source = "https://arxiv.org/abs/1502.01852"
    sees = "root mean square of the outputs of each module in the first forward"
    remedy = "Scale the initial weights to the width of their inputs, and normalise between blocks."

    def judge(self, trial: Trial) -> Iterator[CheckFinding]:
        for blocks in _lists(trial.outputs):
            sizes = [row.rms for row in blocks]
            factors = [after / before for before, after in pairwise(sizes) if before and after]
            total = sizes[-1] / sizes[0] if sizes[0] else 0.0
            steady = len(factors) == len(sizes) - 1 and (min(factors) > BLOCK or max(factors) < 1 / BLOCK)
            if steady:
                grade: Grade = "warning" if total > EXTREME or total < 1 / EXTREME else "note"
                text = message(
                    "outputs grow from {first:.3g} to {last:.3g} between {one} and {other}"
                    if total > 1
                    else "outputs shrink from {first:.3g} to {last:.3g} between {one} and {other}",
                    first=sizes[0],
                    last=sizes[-1],
                    one=blocks[0].name,
                    other=blocks[-1].name,
                )
                evidence = {"first": sizes[0], "last": sizes[-1], "blocks": len(sizes)}
                yield self.finding(text, evidence, [row.name for row in blocks], grade)

    def missing(self, trial: Trial) -> str | None:
        return None if any(_lists(trial.outputs)) else NotApplicable("no list of blocks")


def _lists(rows: Sequence[OutputFacts]) -> list[list[OutputFacts]]:
    """Return the blocks of one class that a list numbers, list by list, in the order of the calls."""
    lists: defaultdict[tuple[str, str], list[OutputFacts]] = defaultdict(list)
    for row in rows:
        if (numbered := NUMBERED.match(row.name)) is not None:
            lists[numbered[1], row.kind].append(row)
    return [blocks for blocks in lists.values() if len(blocks) >= FEWEST]


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
        seen = [row for row in trial.outputs if row.kind in RECTIFIERS and row.hidden]
        dead = [row.name for row in seen if row.zeros == 1]
        many = [row.name for row in seen if MANY < row.zeros < 1]
        if dead:
            text = message("all outputs of {dead} are 0: no gradient passes through it", dead=listing(dead))
            yield self.finding(text, {"modules": len(dead), "of": len(seen)}, dead)
        elif many:
            text = message("more than nine of ten outputs of {many} are 0", many=listing(many))
            yield self.finding(text, {"modules": len(many), "of": len(seen)}, many, grade="note")

    def missing(self, trial: Trial) -> str | None:
        return None if any(row.kind in RECTIFIERS for row in trial.outputs) else NotApplicable("no rectifier")


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
        seen = [row for row in trial.outputs if row.kind in LIMITED and row.hidden]
        rows = [row for row in seen if row.saturated > MANY]
        if rows:
            names = [row.name for row in rows]
            text = message(
                "more than nine of ten outputs of {names} lie at a limit of the function", names=listing(names)
            )
            evidence = {"modules": len(rows), "of": len(seen), "share": max(row.saturated for row in rows)}
            yield self.finding(text, evidence, names)

    def missing(self, trial: Trial) -> str | None:
        seen = any(row.kind in LIMITED for row in trial.outputs)
        return None if seen else NotApplicable("no sigmoid or hyperbolic tangent")


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
        unlike = [*unlike_ones(_dtypes(trial))]
        if unlike:
            text = message(
                "the output of {unlike} is in float32, that at the same place in other blocks is not",
                unlike=listing(unlike),
            )
            yield self.finding(text, {"modules": len(unlike)}, unlike)

    def missing(self, trial: Trial) -> str | None:
        if not trial.outputs:
            return "no output of a module was seen"
        dtypes = {dtype.rpartition(".")[2] for dtype in _dtypes(trial).values()}
        return None if dtypes & {"float16", "bfloat16"} else NotApplicable("no half precision")


def _dtypes(trial: Trial) -> dict[str, str]:
    return {row.name: row.dtype for row in trial.outputs if row.dtype}
