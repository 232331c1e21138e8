"""Checks of the numbers with which parameters begin."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from probe.core.checks.check import CheckFinding, JudgedUpdate, NotApplicable
from probe.core.checks.loop_check import FactCheck
from probe.core.checks.places import listing, module_of
from probe.core.checks.update_facts import Array, UpdateFacts
from probe.core.language import Message, message


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


def unusual(convention: Convention, names: list[str], value: float) -> Message:
    """Return the sentence about parameters of a name that all begin at ``value``."""
    return message(
        "{names}: all numbers begin at {most:.3g}, where they should differ and be below {most2:.3g}: {meaning}",
        names=listing(names),
        most=value,
        most2=convention.most,
        meaning=message(convention.meaning),
    )


def no_factors(names: list[str]) -> Message:
    """Return the sentence about pairs of low-rank factors that are both 0."""
    return message(
        "{names}: both low-rank factors begin at 0, so that no gradient reaches either", names=listing(names)
    )


def alike(names: list[str]) -> Message:
    """Return the sentence about weights of units that are alike."""
    return message(
        "{names}: every output begins with the same weights, so that its units stay alike", names=listing(names)
    )


class FirstNumbers(FactCheck):
    """Base of these checks: they judge the parameters that were looked at before the first update."""

    sees = "least and greatest number of the parameters that are looked at before the first update"
    lacks = "no number of a parameter was known before the first update"

    def __init__(self) -> None:
        super().__init__()
        self._names: tuple[str, ...] | None = None

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        facts = update.facts
        if facts.names is self._names or facts.names == self._names:
            return
        first, self._names = self._names is None, facts.names
        if not first or facts.values is None or facts.values.limits is None or (facts.state_steps or 0) > 0:
            return
        limits = facts.values.limits()
        self.judged |= bool(len(limits))
        names = [facts.names[position] for position in facts.values.looked]
        yield from self.begun(facts, names, limits)

    def begun(self, facts: UpdateFacts, names: list[str], limits: Array) -> Iterator[CheckFinding]:
        """Return the findings with the first numbers.

        Args:
            names: parameters that were looked at.
            limits: least and greatest number of each.
        """
        raise NotImplementedError


class BeginsWrong(FirstNumbers):
    """Report parameters with a name that many models share all of whose numbers begin alike, outside the range for it:
    the bias of the time step of a state space model.

    A pair of low-rank factors that are both 0 is reported, too: no gradient reaches either.
    """

    name = "initialisation"
    title = "Beginning of a parameter"
    why = "The model trains, and ends worse than its reference."
    source = "https://github.com/fla-org/flash-linear-attention/issues/739"
    remedy = "Initialise it as the reference does; look whether a generic initialisation comes after the model's own."

    def begun(self, facts: UpdateFacts, names: list[str], limits: Array) -> Iterator[CheckFinding]:
        """Return the findings with the first numbers."""
        rows = [*zip(names, limits.tolist(), strict=True)]
        for convention in CONVENTIONS:
            of = [
                (name, low) for name, (low, high) in rows if name.rpartition(".")[2] == convention.end and low == high
            ]
            wrong = [name for name, low in of if low > convention.most]
            if wrong:
                text = unusual(convention, wrong, of[0][1])
                yield self.finding(facts, facts.step, text, {"value": of[0][1]}, tuple(wrong))
        zero = {name for name, (low, high) in rows if not low and not high}
        pairs = sorted(name for name in zero if "lora_A" in name and name.replace("lora_A", "lora_B") in zero)
        if pairs:
            yield self.finding(facts, facts.step, no_factors(pairs), {"pairs": len(pairs)}, tuple(pairs))


class AlikeUnits(FirstNumbers):
    """Report a model each of whose weights begins at one number, not 0: the units of a layer get the same gradient, and
    stay alike. Weights are the parameters that are larger than the bias of their module; there must be two at least,
    and no other parameter, but biases and norms, may begin with different numbers."""

    name = "symmetric-units"
    title = "Units are alike"
    why = "The layer has the power of a single unit."
    source = "https://www.deeplearningbook.org/contents/optimization.html"
    remedy = "Initialise the weights with random numbers."
    lacks = NotApplicable("fewer than two weights with a bias were looked at before the first update")

    def begun(self, facts: UpdateFacts, names: list[str], limits: Array) -> Iterator[CheckFinding]:
        """Return the findings with the first numbers."""
        if len(names) != len(facts.names) or not facts.sizes:
            return
        sizes = dict(zip(facts.names, facts.sizes, strict=True))
        small = {name for name in names if sizes.get(f"{module_of(name)}.weight", 0) > sizes[name]}
        rest = [n for n, name in enumerate(names) if name not in small]
        weights = [n for n in rest if sizes[names[n]] > sizes.get(f"{module_of(names[n])}.bias", np.inf) > 1]
        self.judged = len(weights) > 1
        equal = limits[:, 0] == limits[:, 1]
        biases = all(equal[n] for n, name in enumerate(names) if name in small)
        if len(weights) > 1 and biases and equal[rest].all() and limits[weights, 0].all():
            where = [names[n] for n in weights]
            evidence = {"parameters": len(where), "weight": float(limits[weights[0], 0])}
            yield self.finding(facts, facts.step, alike(where), evidence, tuple(where))
