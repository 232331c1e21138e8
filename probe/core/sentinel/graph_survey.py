"""Survey of the graphs of losses, now and then: where and in which dtype the forward uses each parameter."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from probe.core.backend.protocols import Module, Tensor, TrainingLoop
from probe.core.checks.loss_calls import LossGraph
from probe.core.checks.parameter_use import ParameterUse

FIRST, GRAPHS, INTERVAL = 2, 4, 1024
"""Number of the first loss whose graph is walked, how many in a row are, as a program may have several models, and
after how many losses again."""
KEPT = 100
"""Number of a loss at which none of the graphs before should be left."""
SHARE = 0.002
"""Part of the time that the walks may take."""
MOST_AGAIN = 8
"""Number of times that the next losses are surveyed because other parameters require a gradient."""


class GraphSurvey:
    """Uses of the parameters, of the latest walks.

    Args:
        names: returns the names of the parameters by identity.
        unregistered: returns those of the parameters that no model registers and no optimizer has.
        models: returns the models.
    """

    def __init__(
        self,
        loop: TrainingLoop,
        names: Callable[[], Mapping[int, str]],
        unregistered: Callable[[], Mapping[int, str]],
        models: Callable[[], Sequence[Module]],
    ) -> None:
        self._loop, self._names, self._unregistered, self._models = loop, names, unregistered, models
        self._kept: dict[str, int] = {}
        """Losses that modules keep, each with the number of graphs beside which it was, and in none of which."""
        # where gradients are results of what is asked for, only graphs show which other parameters have a part in them
        self._losses, self._spent, self._began = 0 if loop.keeps(()) else FIRST, 0.0, time.perf_counter()
        self.recent = set[str]()
        """Parameters of the graphs since :meth:`again`."""
        self._again = 0
        self.uses: Mapping[str, ParameterUse] = {}
        """Use of each parameter that was met; the same object as long as nothing has changed."""

        self.strangers = False
        """True if any leaf was no known parameter."""
        self.hidden: tuple[str, ...] = ()
        """Parameters of the latest graph that no model registers and no optimizer has."""
        self.unused: tuple[str, ...] = ()
        """Losses that modules keep, and of which no loss that was surveyed is made."""
        self._lives: list[Callable[[], object]] = []
        """Functions that return something as long as the first graphs exist."""
        self._collectives = 0
        """Collectives of all ranks before the last loss that was looked at."""
        self.talks = False
        """True if some have run between two of them."""
        self.keeps_graphs = False
        """True if the first graphs exist after many other losses."""
        self.graph: Callable[[], LossGraph] | None = None
        """Function that waits for what the latest graph shows."""

    def again(self) -> None:
        """Survey the next losses: other parameters require a gradient."""
        self.recent.clear()
        self._again += 1
        if self._again <= MOST_AGAIN:
            self._losses = FIRST

    def look(self, root: Tensor) -> None:
        """Walk the graph of a loss whose backward has not begun, if it is time."""
        number = self._losses % INTERVAL - FIRST
        self._losses += 1
        if self._losses == KEPT:
            self.keeps_graphs = bool(self._lives) and all(lives() is not None for lives in self._lives)
        if not 0 <= number < GRAPHS:
            return
        if self._losses < KEPT:
            self._lives += self._loop.life(root)
            before, self._collectives = self._collectives, self._loop.collectives()
            self.talks = 0 < before < self._collectives
        begun = time.perf_counter()
        if self._losses > INTERVAL and self._spent > SHARE * (begun - self._began):
            return
        names, unregistered = self._names(), self._unregistered()
        uses = dict(self._loop.uses(root, {**unregistered, **names}))
        self.strangers |= uses.pop("", None) is not None
        self.recent.update(uses)
        hidden = [name for identity, name in unregistered.items() if identity not in names and name in uses]
        self.hidden = tuple(sorted(hidden, key=lambda name: uses[name].order))
        if any(self.uses.get(name) != use for name, use in uses.items()):
            self.uses = {**self.uses, **uses}
        self.graph = self._loop.loss_graph(root, names) or self.graph
        for name, used in self._loop.kept_losses(self._models(), root).items():
            self._kept[name] = -GRAPHS if used else self._kept.get(name, 0) + 1
        self.unused = tuple(name for name, number in self._kept.items() if number == GRAPHS)
        self._spent += time.perf_counter() - begun
