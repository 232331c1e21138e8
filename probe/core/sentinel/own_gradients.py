"""Own gradients of a rank, before any reduction: of a few small parameters, at every update, to compare ranks by.

All of them would cost a hook each in every backward. A few are enough to see that ranks compute the same, or that one
computes something else than its peers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from probe.core.backend.protocols import OwnGradientReader, Parameter
from probe.core.checks.update_facts import Array
from probe.core.instrumentation.context import Run

MOST_PARAMETERS = 2
"""Parameters that are looked at."""
MOST_ELEMENTS = 1 << 15
"""Elements of each of them at most: the sum of so many takes as long as the calls around it."""


class TakenGradients(NamedTuple):
    """Own gradients of one update, whose numbers may be on their way to the host."""

    names: Sequence[str]
    wait: Callable[[], Array]

    def table(self, names: Sequence[str]) -> Array | None:
        """Return norm and sum by the order of ``names``, NaN where a parameter was not looked at; None if none was.
        Wait for the device."""
        places = {name: place for place, name in enumerate(names)}
        pairs = [(n, places[name]) for n, name in enumerate(self.names) if name in places]
        if not pairs:
            return None
        table = np.full((len(names), 2), np.nan)
        table[[place for _, place in pairs]] = self.wait()[[n for n, _ in pairs]]
        return table


class OwnGradients:
    """Own gradients of the parameters of a run."""

    def __init__(self, reader: OwnGradientReader, names: Sequence[str]) -> None:
        self._reader, self._names = reader, names

    def taken(self) -> TakenGradients:
        """Return what has come since the last call."""
        positions, wait = self._reader.take()
        return TakenGradients([self._names[position] for position in positions], wait)

    def remove(self) -> None:
        """Remove the hooks."""
        self._reader.remove()


def own_gradients(run: Run) -> OwnGradients | None:
    """Place hooks on a few of the parameters that the run's optimizers update; None where ranks have no others to be
    compared with, or none of their own gradients can be seen."""
    loop = run.framework.loop
    if loop is None or run.framework.groups.world_size() < 2:
        return None
    hooks = run.framework.hooks
    updated = {id(parameter) for optimizer in run.optimizers for parameter in hooks.owned(optimizer)}
    every = [pair for _, model in run.chunks for pair in hooks.parameters(model) if id(pair[1]) in updated]
    parameters = _chosen(every, loop.sizes([parameter for _, parameter in every]))
    reader = loop.own_gradients([parameter for _, parameter in parameters], lambda: _captures(run), run.faults)
    return None if reader is None else OwnGradients(reader, [name for name, _ in parameters])


def _chosen(every: Sequence[tuple[str, Parameter]], sizes: Sequence[int]) -> list[tuple[str, Parameter]]:
    """Return the first and the last parameter of those that are small."""
    small = [pair for pair, size in zip(every, sizes, strict=True) if 1 < size <= MOST_ELEMENTS]
    number = min(MOST_PARAMETERS, len(small))
    return [small[int(place)] for place in np.linspace(0, len(small) - 1, number)]


def _captures(run: Run) -> bool:
    return run.capturing is not None and run.captured()
