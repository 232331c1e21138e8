"""Training of 50 steps whose tracker takes long to begin: ``python -m tests.core.trackers.slow_tracker BEGIN GRACE``,
in seconds. What the tracker gets is in the file ``got``."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from probe.core.trackers import TRACKERS, TrackedRow, Tracker, TrackerPlace
from tests.matrix import numpy_harness as framework
from tests.matrix.harness import train_step
from tests.matrix.models import X, tiny_net

STEPS = 50


class SlowTracker(Tracker):
    """Tracker that begins slowly."""

    def __init__(self, _: object) -> None:
        self._lines: list[str] = []
        self._write()

    def begin(self) -> None:
        time.sleep(float(sys.argv[1]))
        self._write("begin")

    def log(self, rows: Sequence[TrackedRow]) -> None:
        self._write(*(str(row.step) for row in rows))

    def end(self) -> None:
        self._write("end")

    def _write(self, *lines: str) -> None:
        self._lines += lines
        Path("got").write_text("\n".join(self._lines))


def main() -> None:
    TRACKERS["wandb"] = TrackerPlace(f"{__name__}:SlowTracker", "json")
    model = tiny_net(framework)
    optimizer = framework.optimizer("momentum", model, lr=0.1, momentum=0.9)
    loop = framework.loop(model, optimizer)
    config = {"format": ["csv", "wandb"], "wg_distribution": True, "trackers": {"max_overhead": 1.0, "project": "a b"}}
    monitor = framework.TrainerMon({**config, "targets": {}, "alert": {"grace_seconds": float(sys.argv[2])}})
    monitor.set_monitor(model, 1, optimizer)
    for _ in range(STEPS):
        train_step(loop, framework.tensor(X))


if __name__ == "__main__":
    main()
