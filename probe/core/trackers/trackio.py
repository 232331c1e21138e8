"""Tracker of Trackio."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from probe.core.trackers import Cell, Notice, TrackedRow, TrackedTable, TrackerTarget
from probe.core.trackers.borrowed_step import BorrowedStep

STEP = "probe/step"


class TrackioTracker:
    """Run of the program's, which is joined, or an own one.

    In a joined run the counter of steps is the program's; ``probe/step`` has the step of the values beside it. NaN and
    Inf become texts in its database.
    """

    def __init__(self, target: TrackerTarget) -> None:
        self._target, self._step = target, BorrowedStep()
        loaded: Any = sys.modules.get("trackio")
        # The active run is a variable of the context: only the thread that has begun it sees it.
        self._run: Any = loaded.context_vars.current_run.get() if loaded is not None and target.joins else None
        self._joined = self._run is not None
        self._last = 0
        """The highest step of a row."""

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

    def log(self, rows: Sequence[TrackedRow]) -> None:
        """Log ``rows``."""
        self._log(rows)

    def _log(self, rows: Sequence[TrackedRow], ends: bool = False) -> None:
        self._last = max([self._last, *(row.step for row in rows)])
        highest = self._highest() if self._joined else None
        for step, row in self._step.due(rows, highest, ends):
            self._run.log({**row.values, STEP: row.step}, step=step)

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

    def _put(self, name: str, thing: Any) -> None:
        """Log a text or a table at the last step; nothing before the first values of a joined run."""
        highest = self._highest() if self._joined else None
        if highest != -1:
            self._run.log({name: thing}, step=self._last if highest is None else min(self._last, highest))

    def _highest(self) -> int | None:
        """Return the highest step that was logged; None where Trackio does not show it (it does in 0.43)."""
        following = getattr(self._run, "_next_step", None)
        return following - 1 if isinstance(following, int) else None
