"""Tracker of SwanLab."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from probe.core.trackers import Cell, Notice, TrackedTable, TrackerEnded, TrackerTarget
from probe.core.trackers.borrowed_step import CountedRun


class SwanlabTracker(CountedRun):
    """Run of SwanLab, which has one a process."""

    def __init__(self, target: TrackerTarget) -> None:
        loaded: Any = sys.modules.get("swanlab")
        super().__init__(target, loaded.get_run() if loaded is not None and target.joins and loaded.has_run() else None)

    def begin(self) -> None:
        """Join the active run, or begin one.

        Raises:
            TrackerEnded: if the run has been finished.
        """
        import swanlab

        if not self._joined and self._target.joins and swanlab.has_run():
            self._run, self._joined = swanlab.get_run(), True
        self._check()
        if not self._joined:
            target = self._target
            # Interactive, the package asks for a key at the terminal, and training waits for the keyboard.
            settings = swanlab.Settings(
                interactive=False, terminal={"proxy_type": "none"}, probe={"hardware": False, "git": False}
            )
            project = os.environ.get("SWANLAB_PROJECT") or os.environ.get("SWANLAB_PROJ_NAME") or target.project
            self._run = swanlab.init(project=project, name=target.run, config=dict(target.facts), settings=settings)

    def alert(self, notice: Notice) -> None:
        """Log a text: SwanLab has no alerts of a program."""
        import swanlab

        self._put("probe/alert", swanlab.Text(f"step {notice.step}: {notice.title}\n{notice.text}"))

    def table(self, table: TrackedTable) -> None:
        """Log a table."""
        from swanlab import echarts

        rows = [[str(cell) for cell in row] for row in table.rows]
        self._put(table.name, echarts.Table().add(list(table.columns), rows))

    def summary(self, texts: Mapping[str, Cell]) -> None:
        """Log a text with all facts."""
        import swanlab

        self._put("probe/summary", swanlab.Text("\n".join(f"{name}: {text}" for name, text in texts.items())))

    def artifact(self, path: Path) -> None:
        """Log a page as such: a file that is saved would be linked, and is gone when the link is followed."""
        import swanlab

        self._put(f"probe/{path.stem}", swanlab.Html(path))

    def end(self) -> None:
        """Finish an own run, and leave one of the program's."""
        if self._joined:
            self._log((), ends=True)
        else:
            self._run.finish()

    def _highest(self) -> int | None:
        """Return the highest step that was logged; None where SwanLab does not show it (it does in 0.10)."""
        highest = getattr(getattr(self._run, "_ctx", None), "_global_step", None)
        return highest if isinstance(highest, int) else None

    def _check(self) -> None:
        """Check that a joined run goes on.

        Raises:
            TrackerEnded: if the program has finished it.
        """
        if self._joined and not self._run.alive:
            raise TrackerEnded("the program has finished its run; later rows are in the files: probe track")
