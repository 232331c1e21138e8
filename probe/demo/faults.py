"""Which module breaks, how and at which step. Nothing here is known to the monitor, nor is here what it finds.

A fault is part of the model: it is attached before the monitor, whose hooks see what the broken module really gives.
What counts as the first bad place:

``nan``
    A weight has a NaN when its step begins: the parameter itself, before anything is computed with it.
``overflow``
    A module's output leaves the range of float32: that module, whose inputs were still right.
``gradient``
    The backward of a module hands on a gradient that is too large by a factor of 1e4 to 1e6, and finite, although the
    one that it received was right: that module, whose own weights and inputs get the wrong gradient.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

KINDS = ("nan", "overflow", "gradient")


class Injection(NamedTuple):
    """A fault: what, where and when."""

    kind: str
    place: str
    """Name of the broken module; for ``nan`` of the parameter."""
    step: int
    detail: str
    """How it is broken, in words."""
    strength: float = 0.0
    """The factor of an overflow or a gradient."""
    element: int = 0
    """Which element of the parameter becomes NaN."""


class FaultPlaces(NamedTuple):
    """Where a model can break, by name and in its order."""

    parameters: Mapping[str, int]
    """The number of elements of each."""
    computing: Sequence[str]
    """Modules with a forward of their own, which a mere list has not; the whole model left out."""
    weighted: Sequence[str]
    """Modules with parameters of their own: in the others, a part of them is where a gradient goes wrong first."""


class Fault:
    """An injection in a model. Set :attr:`step` as training goes on; it strikes in the forward of its own step."""

    def __init__(self, injection: Injection) -> None:
        self.injection = injection
        self.step = -1

    def strikes(self) -> bool:
        """Whether the model is to be broken now."""
        return self.step == self.injection.step


def draw(kind: str | None, places: FaultPlaces, steps: tuple[int, int], seed: int) -> Injection:
    """A fault of ``kind``, or of any kind if it is None, at a random place and step.

    Args:
        steps: the first step at which it may happen, and the first at which it may not any more.
    """
    random = np.random.default_rng([seed, 0xFA])
    any_kind = str(random.choice(KINDS))  # drawn in any case, so that a seed means the same place for each kind
    kind = kind or any_kind
    step = int(random.integers(*steps))
    if kind == "nan":
        return _nan(places.parameters, step, random)
    if kind == "overflow":
        return Injection(kind, _pick(places.computing, random), step, "output times 3e38", 3e38)
    factor = float(f"{10 ** random.uniform(4, 6):.2g}")
    return Injection(kind, _pick(places.weighted, random), step, f"gradients times {factor:.2g}", factor)


def _nan(parameters: Mapping[str, int], step: int, random: np.random.Generator) -> Injection:
    place = _pick(list(parameters), random)
    element = int(random.integers(parameters[place]))
    return Injection("nan", place, step, f"element {element} is NaN", element=element)


def _pick(names: Sequence[str], random: np.random.Generator) -> str:
    return names[int(random.integers(len(names)))]
