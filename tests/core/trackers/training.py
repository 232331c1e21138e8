"""A training run of the toy framework with a tracker: ``python -m tests.core.trackers.training TRACKER HOW``.

``own``, ``report``: the program does not use the tracker; without and with a report. ``plain``, ``step``: it has a run
of its own, and logs to it without and with ``step=``. ``finished``: it finishes its run in the middle.
``later``: it begins its run after the monitor.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.matrix import numpy_harness as framework
from tests.matrix.harness import train_step
from tests.matrix.models import X, tiny_net

ROOT = Path(__file__).parents[3]
STEPS, BAD = 6, 4
"""Steps of a run, and the first of which the input has a NaN."""
MARK = "result: "
"""Beginning of the line that is read: trackers print, too."""
CONFIG: dict[str, Any] = {
    "targets": {},
    "wg_distribution": True,
    "ops": ["norm", "max", "nans"],
    "trackers": {"seconds": 0.02, "max_overhead": 1.0},
}


def trained(tracker: str, packages: Path, folder: Path, how: str = "own", **environment: str) -> dict[str, Any]:
    """What the script prints: faults of the monitor, and the log."""
    own = {**os.environ, "PYTHONPATH": f"{packages}{os.pathsep}{ROOT}", "MONITOR_OUTPUT_DIR": str(folder / "out")}
    process = subprocess.run(
        [sys.executable, "-m", "tests.core.trackers.training", tracker, how],
        cwd=folder,
        env=own | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    printed: dict[str, Any] = json.loads(process.stdout.rpartition(MARK)[2].partition("\n")[0])
    return printed | {"log": process.stderr}


class _WandbProgram:
    """A program with a run of its own."""

    def __init__(self, how: str) -> None:
        import wandb

        self._how, self._run = how, wandb.init(project="the program's")

    def log(self, step: int) -> None:
        if self._how == "finished" and step == 2:
            self._run.finish()
        elif self._how == "step":
            self._run.log({"loss": step}, step=step)
        elif self._how == "plain":
            self._run.log({"loss": step})

    def end(self) -> None:
        if self._how != "finished":
            self._run.log({"end": 1})


class _MlflowProgram:
    """The same with MLflow, whose active run is one of the thread."""

    def __init__(self, how: str) -> None:
        import mlflow

        mlflow.set_experiment("program")
        self._how, self._mlflow, self._run = how, mlflow, mlflow.start_run()

    def log(self, step: int) -> None:
        self._mlflow.log_metric("loss", step, **({"step": step} if self._how == "step" else {}))

    def end(self) -> None:
        self._mlflow.log_metric("end", 1)
        self._mlflow.end_run()


class _SwanlabProgram:
    """The same with SwanLab."""

    def __init__(self, how: str) -> None:
        import swanlab

        self._how, self._run = how, swanlab.init(project="program")

    def log(self, step: int) -> None:
        self._run.log({"loss": step}, **({"step": step} if self._how == "step" else {}))

    def end(self) -> None:
        self._run.log({"end": 1})
        self._run.finish()


class _TrackioProgram(_SwanlabProgram):
    """The same with Trackio."""

    def __init__(self, how: str) -> None:
        import trackio

        self._how, self._run = how, trackio.init(project="program", embed=False)


PROGRAMS: Mapping[str, Any] = {
    "wandb": _WandbProgram,
    "mlflow": _MlflowProgram,
    "swanlab": _SwanlabProgram,
    "trackio": _TrackioProgram,
}


def main(tracker: str, how: str) -> None:
    program = PROGRAMS[tracker](how) if how not in ("own", "report", "later") else None
    model = tiny_net(framework)
    optimizer = framework.optimizer("momentum", model, lr=0.1, momentum=0.9)
    loop = framework.loop(model, optimizer)
    config: dict[str, Any] = {**CONFIG, "format": ["csv", tracker], "alert": {"grace_seconds": 300}}
    config["trackers"] = {**CONFIG["trackers"], "report": how == "report"}
    monitor = framework.TrainerMon(config)
    monitor.set_monitor(model, 1, optimizer)
    program = PROGRAMS[tracker]("step") if how == "later" else program
    for step in range(STEPS):
        monitor.log(loss=step / 4)
        train_step(loop, framework.tensor(X * np.nan if step >= BAD else X))
        if program is not None:
            program.log(step)
    monitor.stop()
    if program is not None:
        program.end()
    sys.stdout.write(f"\n{MARK}{json.dumps({'faults': monitor.faults})}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
