"""Faults that the demonstration injects: the broken module, the kind and the step. The monitor knows nothing of them.

A fault is part of the model: it is attached before the monitor, whose hooks see the outputs of the broken module. The
first bad place is:

``nan``
    The parameter: a weight has a NaN when its step begins, before anything is computed with it.
``overflow``
    The module whose output leaves the range of float32, while its inputs are still right.
``gradient``
    The module whose backward receives a right gradient and returns one that is too large by a factor of 1e4 to 1e6, but
    finite: its own weights and inputs get the wrong gradient.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

KINDS = ("nan", "overflow", "gradient")


class Injection(NamedTuple):
    """Kind, place and step of a fault."""

    kind: str
    place: str
    """Name of the broken module; for ``nan`` of the parameter."""
    step: int
    detail: str
    """Description of the fault."""
    strength: float = 0.0
    """Factor of an overflow or a gradient."""
    element: int = 0
    """Index of the element of the parameter that becomes NaN."""


class FaultPlaces(NamedTuple):
    """Places where a model can break, by name and in its order."""

    parameters: Mapping[str, int]
    """Parameters with their numbers of elements."""
    computing: Sequence[str]
    """Modules with a forward of their own, unlike mere lists; without the whole model."""
    weighted: Sequence[str]
    """Modules with parameters of their own: in others, the first bad gradient would be one of a submodule."""


class Fault:
    """Injection in a model. Set :attr:`step` as training goes on; the fault strikes in the forward of its own step."""

    def __init__(self, injection: Injection) -> None:
        self.injection = injection
        self.step = -1

    def strikes(self) -> bool:
        """Return whether the model is to be broken now."""
        return self.step == self.injection.step


def draw(kind: str | None, places: FaultPlaces, steps: tuple[int, int], seed: int) -> Injection:
    """Draw a fault of ``kind``, or of any kind if it is None, at a random place and step.

    Args:
        steps: first step at which it may happen, and the first step at which it may not.
    """
    random = np.random.default_rng([seed, 0xFA])
    any_kind = str(random.choice(KINDS))  # drawn in any case, so that a seed means the same place for each kind
    kind = kind or any_kind
    step = int(random.integers(*steps))
    if kind == "nan":
        place = _pick(list(places.parameters), random)
        element = int(random.integers(places.parameters[place]))
        return Injection(kind, place, step, f"element {element} is NaN", element=element)
    if kind == "overflow":
        return Injection(kind, _pick(places.computing, random), step, "output times 3e38", 3e38)
    factor = float(f"{10 ** random.uniform(4, 6):.2g}")
    return Injection(kind, _pick(places.weighted, random), step, f"gradients times {factor:.2g}", factor)


def _pick(names: Sequence[str], random: np.random.Generator) -> str:
    return names[int(random.integers(len(names)))]
