"""Tracker of Weights & Biases."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from netrc import NetrcParseError, netrc
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from probe.core.trackers import Cell, Notice, TrackedRow, TrackedTable, TrackerEnded, TrackerTarget
from probe.core.trackers.borrowed_step import STEP

END_SECONDS = 20.0
"""Longest time in which a run begins, and in which it ends."""
MOST_PARTS = 64
"""Latest steps of which values may still come."""
LONGEST_TITLE = 63
"""Most characters of the title of an alert."""


class WandbTracker:
    """Run of the program's, which is joined, or an own one.

    In a joined run the step is the program's: nothing here advances it, since a program that passes ``step=`` to its
    own ``log`` would lose every value of an earlier step. So rows wait there, without ``commit``, until the program
    logs, and of those that come meanwhile one is kept. A later row takes the place of the one that waits only if it has
    all of its names: a name that it lacks would stay, beside a ``probe/step`` to which its value does not belong.
    """

    def __init__(self, target: TrackerTarget) -> None:
        self._target = target
        loaded: Any = sys.modules.get("wandb")
        self._run: Any = getattr(loaded, "run", None) if target.joins else None
        self._joined = self._run is not None
        self._waiting: TrackedRow | None = None
        """The row that was logged last in a joined run."""
        self._waits_at = -1
        """Step of the program at which it waits."""
        self._parts: dict[int, Mapping[str, float]] = {}
        """Values of the latest steps, which may come in several rows."""

    def begin(self) -> None:
        """Join the active run, or begin one that is nobody's active run.

        Raises:
            TrackerEnded: if nobody is logged in, or if the run has been finished.
        """
        import wandb

        if not self._joined and self._target.joins:
            self._run = wandb.run
            self._joined = self._run is not None
        self._check()
        if not self._joined:
            self._run = self._new_run(wandb)
        self._run.define_metric(STEP, hidden=True)
        self._run.define_metric("probe/*", step_metric=STEP)

    def _new_run(self, wandb: Any) -> Any:
        wandb_settings, target = wandb.setup().settings, self._target
        if wandb_settings.mode in ("online", "shared") and not _has_key(wandb_settings):
            raise TrackerEnded("nobody is logged in: run `wandb login`, or set WANDB_MODE=offline")
        settings = wandb.Settings(silent=True, console="off", x_disable_stats=True, disable_git=True)
        if target.joins:  # a training process: a server that hangs holds its end up no longer
            seconds = float(os.environ.get("WANDB_INIT_TIMEOUT") or END_SECONDS)
            settings = settings.model_copy(update={"init_timeout": seconds, "finish_timeout": END_SECONDS})
        return wandb.init(
            project=os.environ.get("WANDB_PROJECT") or target.project,
            name=os.environ.get("WANDB_NAME") or target.run,
            config=dict(target.facts),
            reinit="create_new",
            settings=settings,
        )

    def log(self, rows: Sequence[TrackedRow]) -> None:
        """Log ``rows``; in a joined run, the last that fits."""
        self._check()
        if self._joined:
            self._replace([self._completed(row) for row in rows])
            return
        for row in rows:
            self._run.log({**row.values, STEP: row.step})

    def _completed(self, row: TrackedRow) -> TrackedRow:
        """Return ``row`` with the values of its step that came before."""
        values = {**self._parts.pop(row.step, {}), **row.values}
        self._parts[row.step] = values
        if len(self._parts) > MOST_PARTS:
            del self._parts[min(self._parts)]
        return row._replace(values=values)

    def _replace(self, rows: Sequence[TrackedRow]) -> None:
        """Put the last of ``rows`` that may take it in the place of the one that waits for the program's ``log``."""
        step = self._run.step
        if step != self._waits_at:
            self._waits_at, self._waiting = step, None
        latest_row = self._waiting
        for row in rows:
            if latest_row is None or (latest_row.step <= row.step and latest_row.values.keys() <= row.values.keys()):
                latest_row = row
        if latest_row is not None and latest_row is not self._waiting:
            self._run.log({**latest_row.values, STEP: latest_row.step}, commit=False)
            self._waiting = latest_row
            self._waits_at = self._run.step  # the program may have logged since: then the row waits at its new step

    def alert(self, notice: Notice) -> None:
        """Send an alert of the run."""
        self._check()
        title = notice.title if len(notice.title) <= LONGEST_TITLE else f"{notice.title[: LONGEST_TITLE - 3]}..."
        text = notice.text if title == notice.title else f"{notice.title}\n{notice.text}"
        self._run.alert(title, text, level="ERROR" if notice.critical else "WARN")

    def table(self, table: TrackedTable) -> None:
        """Log a table."""
        import wandb

        self._check()
        columns = [*zip(*table.rows, strict=True)] or [()] * len(table.columns)
        texts = [any(isinstance(cell, str) for cell in column) for column in columns]
        rows = [[str(cell) if text else cell for cell, text in zip(row, texts, strict=True)] for row in table.rows]
        self._run.log({table.name: wandb.Table(columns=list(table.columns), data=rows)}, commit=not self._joined)

    def summary(self, texts: Mapping[str, Cell]) -> None:
        """Set keys of the summary."""
        self._check()
        self._run.summary.update(dict(texts))

    def artifact(self, path: Path) -> None:
        """Log a file as an artifact."""
        import wandb

        self._check()
        made = wandb.Artifact(f"{path.stem}-{self._run.id}", type="probe")
        made.add_file(str(path))
        self._run.log_artifact(made)

    def end(self) -> None:
        """Finish an own run."""
        if not self._joined:
            self._run.finish()

    def _check(self) -> None:
        """Check that a joined run goes on.

        Raises:
            TrackerEnded: if the program has finished it.
        """
        import wandb

        if self._joined and wandb.run is not self._run:
            self._run = None
            raise TrackerEnded("the program has finished its run; later rows are in the files: probe track")


def _has_key(settings: Any) -> bool:
    """Return whether there is a key. The package itself would ask for one at the terminal, and training would wait for
    the keyboard."""
    if settings.api_key or settings.identity_token_file or os.environ.get("WANDB_API_KEY"):
        return True
    host = urlsplit(settings.base_url).hostname or ""
    try:
        return netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, NetrcParseError):
        return False
