"""``cost.jsonl``: what the monitor itself has taken of each collected step, beside files that have no place for it.

Not a CSV file: whoever reads all of those expects rows about tensors.
"""

from __future__ import annotations

import json

from probe.core.output.sinks.context import SinkContext
from probe.core.records import Snapshot
from probe.core.storage.atomic_files import append, cut_torn_line, open_for_append

FILE = "cost.jsonl"
SECONDS = ("hooks", "drain", "device")
OVERHEAD = "probe/overhead"


class CostSink:
    """One line a step: seconds of the step, and the overhead of the run so far as a part of training's time."""

    def __init__(self, context: SinkContext) -> None:
        self._path = context.directory / FILE

    def open(self) -> None:
        """Nothing is made before the first step."""

    def close(self) -> None:
        """Nothing is kept open."""

    def write(self, snapshot: Snapshot) -> None:
        """Appends a line.

        Raises:
            OSError: if that fails; the line is lost.
        """
        seconds = {f"{name}_seconds": _short(snapshot.cost.get(name, 0.0)) for name in SECONDS}
        line = {"step": snapshot.step, **seconds, "overhead": _short(snapshot.scalars.get(OVERHEAD, 0.0))}
        with open_for_append(self._path) as file:
            cut_torn_line(file, self._path)
            append(file, (json.dumps(line) + "\n").encode())


def _short(number: float) -> float:
    return float(f"{number:.6g}")
