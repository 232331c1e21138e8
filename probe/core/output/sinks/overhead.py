"""``cost.jsonl``: the monitor's own cost of each collected step, and its update, beside files that have no place for
them."""

from __future__ import annotations

from probe.core.output.sinks.context import SinkContext
from probe.core.records import Snapshot
from probe.core.storage.files import append_line
from probe.core.storage.layout import COSTS, cost_line

PARTS = ("hooks", "drain", "device")
OVERHEAD = "probe/overhead"


class CostSink:
    """Writer of one line a step: its seconds, the overhead so far as a part of training's time, and its update."""

    def __init__(self, context: SinkContext) -> None:
        self._path = context.directory / COSTS

    def open(self) -> None:
        """Do nothing: no file is made before the first step."""

    def close(self) -> None:
        """Do nothing: no file is kept open."""

    def write(self, snapshot: Snapshot) -> None:
        """Append a line.

        Raises:
            OSError: if the write fails; the line is lost.
        """
        seconds = {part: snapshot.cost.get(part, 0.0) for part in PARTS}
        line = cost_line(snapshot.step, seconds, snapshot.scalars.get(OVERHEAD, 0.0), snapshot.update)
        append_line(self._path, line)
