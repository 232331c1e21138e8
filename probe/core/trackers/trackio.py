"""Tracker of Trackio."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from probe.core.trackers import Cell, Notice, TrackedTable, TrackerTarget
from probe.core.trackers.borrowed_step import CountedRun


class TrackioTracker(CountedRun):
    """Run of Trackio, in whose database NaN and Inf become texts."""

    def __init__(self, target: TrackerTarget) -> None:
        loaded: Any = sys.modules.get("trackio")
        # The active run is a variable of the context: only the thread that has begun it sees it.
        active = loaded.context_vars.current_run.get() if loaded is not None and target.joins else None
        super().__init__(target, active)

    def begin(self) -> None:
        """Join the run that was active, or begin one, which is active on this thread alone."""
        import trackio

        if not self._joined:
            target = self._target
            self._run = trackio.init(
                project=os.environ.get("TRACKIO_PROJECT") or target.project,
                name=target.run,
                config=dict(target.facts),
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )

    def alert(self, notice: Notice) -> None:
        """Send an alert of the run."""
        import trackio

        level = trackio.AlertLevel.ERROR if notice.critical else trackio.AlertLevel.WARN
        self._run.alert(notice.title, notice.text, level, step=notice.step)

    def table(self, table: TrackedTable) -> None:
        """Log a table."""
        import trackio

        rows = [[str(cell) for cell in row] for row in table.rows]
        self._put(table.name, trackio.Table(columns=list(table.columns), data=rows))

    def summary(self, texts: Mapping[str, Cell]) -> None:
        """Log a text with all facts."""
        import trackio

        self._put("probe/summary", trackio.Markdown("\n".join(f"- {name}: {text}" for name, text in texts.items())))

    def artifact(self, path: Path) -> None:
        """Log a file as an artifact."""
        self._run.log_artifact(path, name=f"{path.stem}.html", type="probe")

    def end(self) -> None:
        """Finish an own run, and leave one of the program's."""
        import trackio

        if self._joined:
            self._log((), ends=True)
        else:
            trackio.finish()

    def _highest(self) -> int | None:
        """Return the highest step that was logged; None where Trackio does not show it (it does in 0.43)."""
        following = getattr(self._run, "_next_step", None)
        return following - 1 if isinstance(following, int) else None
