"""Roots of backwards: the values of the losses, and where those that are not finite begin."""

from __future__ import annotations

import math
from collections.abc import Callable

from probe.core.backend.protocols import Block, Tensor, TrainingLoop
from probe.core.checks.beginning import Beginning
from probe.core.door import attempt
from probe.core.instrumentation.context import Run
from probe.core.instrumentation.watched_parts import WatchedParts
from probe.core.sentinel.graph_survey import GraphSurvey
from probe.core.sentinel.optimizer_memory import RunningBackward

MOST_WALKS = 10
"""Incidents of a run of which the graph is walked."""


class LossRoots:
    """Reader of the roots of a run's backwards, before these begin.

    Args:
        parts: returns those of the models; a change of the plan makes others.
        unregistered: returns names of parameters that no model registers, by identity.
    """

    def __init__(
        self,
        loop: TrainingLoop,
        run: Run,
        parts: Callable[[], WatchedParts],
        unregistered: Callable[[], dict[int, str]],
    ) -> None:
        self._loop, self._tensors, self._faults, self._parts = loop, run.framework.tensors, run.faults, parts
        self.beginning: Beginning | None = None
        """Beginning of the values that are not finite, of a root since the last update."""
        self.survey = GraphSurvey(loop, self._names, unregistered, lambda: [model for _, model in run.chunks])
        self.suspect: Callable[[], object] = lambda: None
        """Function that is called where a loss on the host is not finite."""
        self._tracing = True
        """False while an incident lasts."""
        self._walks = 0
        """Number of incidents whose graph was walked."""

    def value(self, root: Tensor, running: RunningBackward) -> Callable[[], float]:
        """Return a function to the value of a root, a copy of which is made at once, without a scaler's factor."""
        scale = self._loop.scale_of(root)
        running.scaled = scale is not None
        value, factor = self._number(root), 1.0 if scale is None else self._number(scale)
        if isinstance(value, float):
            self._trace(root, value)
        attempt(self._faults, "graph walk", self.survey.look, root)
        if isinstance(value, float) and isinstance(factor, float):
            unscaled = value / factor if factor else math.nan
            return lambda: unscaled
        wait = self._tensors.to_host([number for number in (value, factor) if not isinstance(number, float)])

        def waited() -> float:
            numbers = wait()[:, 0].tolist()
            loss = value if isinstance(value, float) else numbers.pop(0)
            scale_factor = factor if isinstance(factor, float) else numbers.pop(0)
            return loss / scale_factor if scale_factor else math.nan

        return waited

    def _trace(self, root: Tensor, value: float) -> None:
        """Look for the beginning of a value that is not finite, once an incident."""
        if math.isfinite(value):
            self._tracing = True
            return
        self.suspect()
        if self._tracing and self._walks < MOST_WALKS:
            self._tracing, self._walks = False, self._walks + 1
            self.beginning = attempt(self._faults, "graph walk", self._loop.first_not_finite, root, self._names())

    def _names(self) -> dict[int, str]:
        """Return the names of the parameters by identity."""
        return {identity: watched.name for identity, watched in self._parts().every.items()}

    def _number(self, tensor: Tensor) -> float | Block:
        number = self._tensors.number(tensor)
        return self._tensors.moments([tensor], ("sum",), 0.0, None) if number is None else number
