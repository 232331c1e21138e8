"""Sink that puts numbers onto a board from which an outlet of metrics sends them."""

from __future__ import annotations

from abc import ABC, abstractmethod

from probe.core.output.metrics.hub import MetricsHub, MetricsOutlet
from probe.core.output.sinks.context import SinkContext
from probe.core.records import Snapshot


class OutletSink(ABC):
    """Writer of numbers of the run, or of tensors, to the outlet that both share."""

    format: str
    """Value of ``format`` in the configuration."""

    def __init__(self, context: SinkContext) -> None:
        self._context = context
        self._outlet: MetricsOutlet | None = None

    @abstractmethod
    def new_outlet(self, hub: MetricsHub) -> MetricsOutlet:
        """Return the outlet, as it is configured."""

    def open(self) -> None:
        """Make the outlet, unless it is there."""
        hub = self._context.metrics
        if hub is None:
            raise RuntimeError(f"format: {self.format}: it needs a running monitor")
        self._outlet = hub.outlet(self.format, MetricsOutlet, self.new_outlet)

    def write(self, snapshot: Snapshot) -> None:
        """Put the numbers of ``snapshot`` in place of earlier ones."""
        if self._outlet is not None:
            self._outlet.board.take(snapshot)
            self._outlet.publish()

    def close(self) -> None:  # noqa: B027 - no outlet ends before the run
        """Do nothing: the outlet stays until the run ends."""
