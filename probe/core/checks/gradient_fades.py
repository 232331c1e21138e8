"""Check for gradients that vanish on their way to the first layers, from the beginning of the training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from probe.core.checks.check import CheckFinding, JudgedUpdate, NotApplicable
from probe.core.checks.loop_check import FactCheck
from probe.core.checks.places import listing, module_of
from probe.core.checks.update_facts import Array
from probe.core.language import message

UPDATES = 10
"""Updates after which it is judged. The largest gradient of these counts: branches may begin at 0."""
EXTREME = 1e4
"""Factor between the gradients of the last and the first layer."""
FEWEST = 4
"""Layers with a weight at least."""
STEEP = 0.75
"""Share of neighbouring layers, at least, between which the gradient changes in the same direction."""
FADED = 2
"""Layers at least whose gradient is that small: an embedding alone may have few rows in use."""


class GradientFades(FactCheck):
    """Report a model in which the gradients of the first layers are less than a ten-thousandth of that of the last one
    in the first updates, and fall from layer to layer.

    Layers stand in the order in which the backward reaches them. The weight of a layer is its largest parameter of two
    dimensions or more: vectors, as of norms or the weights of losses, are left out, and gradients that are exactly 0.
    """

    name = "gradient-fades"
    title = "Gradient vanishes with depth"
    why = "The first layers stay as they were initialised."
    source = "https://dl.acm.org/doi/10.1109/ICSE43902.2021.00043"
    sees = "norms of the gradients in the first updates, and the order of the layers in the graph of a loss"
    remedy = "Use rectifiers, residual connections or normalisation between the layers, and weights scaled to them."
    lacks = f"no order of the layers was seen in the first {UPDATES} updates"

    def __init__(self) -> None:
        super().__init__()
        self._names: tuple[str, ...] = ()
        self._largest: Array = np.zeros(0)
        self._updates, self._since = 0, -1
        self._few = False

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        facts = update.facts
        if self._updates == UPDATES or facts.outcome == "skipped" or update.norms is None:
            return
        if facts.names != self._names:
            self._names, self._updates, self._since = facts.names, 0, facts.step
            self._largest = np.zeros(len(facts.names))
        if not facts.uses:
            return
        self._updates += 1
        self._largest = np.fmax(self._largest, np.where(np.isfinite(update.norms), update.norms, 0.0))
        if self._updates < UPDATES or not facts.sizes:
            return
        layers = self._layers(update)
        self._few = len(layers) < FEWEST
        self.judged = not self._few
        sizes = [size for _, size in layers]
        faded = [module for module, size in layers if sizes[-1] > EXTREME * size]
        if self._few or len(faded) < FADED or not falls(sizes):
            return
        last, where = layers[-1][0], tuple(faded)
        text = message(
            "the gradient of {places} is more than {factor} times smaller than that of {last}",
            places=listing(where),
            factor=f"{EXTREME:,.0f}",
            last=last,
        )
        evidence = {"first": sizes[0], "last": sizes[-1], "layers": len(layers)}
        yield self.finding(facts, self._since, text, evidence, where)

    def missing(self) -> str | None:
        """Return why nothing could be judged."""
        return NotApplicable(f"fewer than {FEWEST} layers with a gradient") if self._few else super().missing()

    def _layers(self, update: JudgedUpdate) -> list[tuple[str, float]]:
        """Return each layer with the root mean square of its weight's gradient, the first layer first."""
        facts = update.facts
        weights: dict[str, tuple[int, float, int]] = {}
        for name, size, norm in zip(facts.names, facts.sizes, self._largest.tolist(), strict=True):
            if (use := facts.uses.get(name)) and use.dimensions > 1 and size:
                module = module_of(name)
                weights[module] = max((size, norm / size**0.5, use.order), weights.get(module, (0, 0.0, 0)))
        ordered = sorted(weights.items(), key=lambda item: item[1][2])
        return [(module, rms) for module, (_, rms, _) in ordered if rms > 0]


def falls(sizes: Sequence[float]) -> bool:
    """Return whether gradients, the first layer's first, fall from layer to layer on their way to it."""
    rises = [after > before for before, after in pairwise(sizes)]
    return sum(rises) >= STEEP * len(rises)
