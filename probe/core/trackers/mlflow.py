"""Tracker of MLflow."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from probe.core.trackers import Cell, Notice, TrackedRow, TrackedTable, TrackerTarget

MOST_METRICS = 1000
"""Most metrics of one call."""
MOST_TAGS = 100
"""Most tags of one call."""
LONGEST_NAME = 250
LONGEST_TAG = 5000
_WRONG = re.compile(r"[^\w\-./ ]")
"""Characters that no name of a metric has on every server."""


class MlflowTracker:
    """Active run of the program, or a new one. It is written by its id, so that no run is made active here.

    MLflow stores Inf as 1.8e308, and one NaN breaks the page of a run (https://github.com/mlflow/mlflow/issues/15535,
    https://github.com/mlflow/mlflow/issues/16555): rows have counts of these values instead.
    """

    def __init__(self, target: TrackerTarget) -> None:
        self._target = target
        loaded: Any = sys.modules.get("mlflow")
        active = loaded.active_run() if loaded is not None and target.joins else None
        self._joined = active is not None
        self._id = str(active.info.run_id) if active is not None else ""
        self._client: Any = None

    def begin(self) -> None:
        """Join the run that is active, also if it has begun after this tracker was made, or begin one in the experiment
        of the project."""
        from mlflow import MlflowClient

        self._client = MlflowClient()
        if not self._joined and self._target.joins:
            self._id = _active_elsewhere()
            self._joined = bool(self._id)
        if self._joined:
            return
        target = self._target
        present = self._client.get_experiment_by_name(target.project)
        experiment = present.experiment_id if present is not None else self._client.create_experiment(target.project)
        self._id = self._client.create_run(experiment, run_name=target.run).info.run_id
        self.summary({f"probe/{name}": value for name, value in target.facts.items()})

    def log(self, rows: Sequence[TrackedRow]) -> None:
        """Log ``rows``, a thousand values a call."""
        from mlflow.entities import Metric

        metrics = [
            Metric(named(name), value, int(row.time * 1000), row.step)
            for row in rows
            for name, value in finite(row.values)
        ]
        for begin in range(0, len(metrics), MOST_METRICS):
            self._client.log_batch(self._id, metrics=metrics[begin : begin + MOST_METRICS])

    def alert(self, notice: Notice) -> None:
        """Set a tag: MLflow has no alerts."""
        self.summary({f"probe/alert/{notice.step}": f"{notice.title}\n{notice.text}"})

    def table(self, table: TrackedTable) -> None:
        """Store the table as a file of JSON."""
        rows = [[written(cell) for cell in row] for row in table.rows]
        self._client.log_dict(self._id, {"columns": list(table.columns), "data": rows}, f"{table.name}.json")

    def summary(self, texts: Mapping[str, Cell]) -> None:
        """Set tags."""
        from mlflow.entities import RunTag

        tags = [RunTag(named(name), str(value)[:LONGEST_TAG]) for name, value in texts.items()]
        for begin in range(0, len(tags), MOST_TAGS):
            self._client.log_batch(self._id, tags=tags[begin : begin + MOST_TAGS])

    def artifact(self, path: Path) -> None:
        """Store a file."""
        self._client.log_artifact(self._id, str(path), "probe")

    def end(self) -> None:
        """End an own run."""
        if not self._joined:
            self._client.set_terminated(self._id)


def _active_elsewhere() -> str:
    """Return the id of the run that is active in any thread and began last; empty if there is none, or if MLflow does
    not show it (it does in 3.17: its public function asks the own thread)."""
    latest = getattr(sys.modules.get("mlflow.tracking.fluent"), "_get_latest_active_run", None)
    run = latest() if latest is not None else None
    return str(run.info.run_id) if run is not None else ""


def finite(values: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    """Yield the finite ones of ``values``, and the numbers of those that are NaN or infinite."""
    nans = infs = 0
    for name, value in values.items():
        nans += math.isnan(value)
        infs += math.isinf(value)
        if math.isfinite(value):
            yield name, value
    yield "probe/nan_values", float(nans)
    yield "probe/inf_values", float(infs)


def named(name: str) -> str:
    """Return ``name`` without characters that a server refuses."""
    return _WRONG.sub("_", name)[:LONGEST_NAME]


def written(cell: Cell) -> Cell:
    """Return a cell that JSON can hold."""
    return str(cell) if isinstance(cell, float) and not math.isfinite(cell) else cell
