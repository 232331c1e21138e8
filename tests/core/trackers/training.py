"""A training run of the toy framework with trackers: ``python -m tests.core.trackers.training TRACKERS HOW``.

``own``, ``report``: the program does not use them; without and with a report. ``full``: nor does it, and no file grows
beyond some bytes, as on a full disk. ``plain``, ``step``: it has runs of its own, and logs to them without and with
``step=``. ``finished``: it finishes its runs in the middle. ``later``: it begins its runs after the monitor.
"""

from __future__ import annotations

import atexit
import json
import os
import resource
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tests.forks import ForkServer
from tests.matrix import numpy_harness as framework
from tests.matrix.harness import train_step
from tests.matrix.models import X, tiny_net
from tests.user_scripts import Ended, ran

ROOT = Path(__file__).parents[3]
STEPS, BAD, FINISHED = 6, 4, 2
"""Steps of a run, the first of which the input has a NaN, and the one in which the program finishes its own runs."""
FULL_BYTES = 600
"""Most bytes of a file on a full disk: those of a step fit in."""
MARK = "result: "
"""Beginning of the line that is read: trackers print, too."""
PACKAGES = {
    "wandb": ("wandb-0.31.0", "pydantic", "click"),
    "mlflow": ("mlflow-skinny-3.17.2", "mlflow", "mlflow.store.tracking.sqlalchemy_store"),
    "swanlab": ("swanlab-0.10.3", "swanlab"),
    "trackio": ("trackio-0.43.0", "huggingface_hub.hf_api", "gradio_client", "httpx"),
}
"""Trackers with what takes long to import; wandb and trackio themselves keep folders of the process that does."""
CONFIG: dict[str, Any] = {
    "targets": {},
    "wg_distribution": True,
    "ops": ["norm", "max", "nans"],
    "trackers": {"seconds": 0.02, "max_overhead": 1.0},
}


def trained(trackers: str, folder: Path, how: str = "own", **environment: str) -> dict[str, Any]:
    """What the script prints: faults of the monitor, and the log.

    Args:
        trackers: their names, with commas between them.
    """
    arguments = ["-m", "tests.core.trackers.training", trackers, how]
    process = ran_with(trackers, arguments, folder, MONITOR_OUTPUT_DIR=str(folder / "out"), **environment)
    assert process.returncode == 0, process.stderr
    printed: dict[str, Any] = json.loads(process.stdout.rpartition(MARK)[2].partition("\n")[0])
    return printed | {"log": process.stderr}


def ran_with(trackers: str, arguments: Sequence[str], folder: Path, **environment: str) -> Ended:
    """The end of a process that runs as ``python`` with these arguments and has what the trackers need."""
    from tests.required import require_version

    names = ("wandb",) if trackers == "wandb" else tuple(PACKAGES)  # one process has imported for all others
    packages = [require_version(PACKAGES[name][0]) for name in names]
    own = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [*packages, ROOT]))}
    if "full" not in arguments:
        return ran(_server(names, own["PYTHONPATH"]), arguments, folder, own | environment)
    # output into a file, as of a process that is forked, would end with the space
    command = [sys.executable, *arguments]
    process = subprocess.run(command, cwd=folder, env=own | environment, capture_output=True, text=True, check=False)
    return Ended(process.returncode, process.stdout, process.stderr)


@cache
def _server(names: tuple[str, ...], path: str) -> ForkServer:
    modules = [module for name in names for module in PACKAGES[name][1:]]
    modules += ["tests.core.trackers.training", "probe.cli.track"]
    one_thread = {"OMP_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
    server = ForkServer(modules, {**os.environ, "PYTHONPATH": path, **one_thread})
    atexit.register(server.close)
    return server


class _Program:
    """A program with a run of its own."""

    def __init__(self, how: str) -> None:
        self._how, self._run = how, self.begun()

    def begun(self) -> Any:
        raise NotImplementedError

    def log(self, step: int) -> None:
        if self._how != "finished" or step < FINISHED:
            self._run.log({"loss": step}, **({} if self._how == "plain" else {"step": step}))
        elif step == FINISHED:
            self._run.finish()

    def end(self) -> None:
        if self._how != "finished":
            self._run.log({"end": 1})
            self._run.finish()


class _WandbProgram(_Program):
    def begun(self) -> Any:
        import wandb

        return wandb.init(project="the program's")


class _SwanlabProgram(_Program):
    def begun(self) -> Any:
        import swanlab

        return swanlab.init(project="program")


class _TrackioProgram(_Program):
    def begun(self) -> Any:
        import trackio

        return trackio.init(project="program", embed=False)


class _MlflowProgram:
    """The same with MLflow, whose active run is one of the thread."""

    def __init__(self, how: str) -> None:
        import mlflow

        mlflow.set_experiment("program")
        self._how, self._mlflow, self._run = how, mlflow, mlflow.start_run()

    def log(self, step: int) -> None:
        if self._how != "finished" or step < FINISHED:
            self._mlflow.log_metric("loss", step, **({} if self._how == "plain" else {"step": step}))
        elif step == FINISHED:
            self._mlflow.end_run()

    def end(self) -> None:
        if self._how != "finished":
            self._mlflow.log_metric("end", 1)
            self._mlflow.end_run()


PROGRAMS: Mapping[str, Any] = {
    "wandb": _WandbProgram,
    "mlflow": _MlflowProgram,
    "swanlab": _SwanlabProgram,
    "trackio": _TrackioProgram,
}


def main(trackers: str, how: str) -> None:
    names = trackers.split(",")
    if how == "full":
        resource.setrlimit(resource.RLIMIT_FSIZE, (FULL_BYTES, FULL_BYTES))
    programs = [PROGRAMS[name](how) for name in names if how in ("plain", "step", "finished")]
    model = tiny_net(framework)
    optimizer = framework.optimizer("momentum", model, lr=0.1, momentum=0.9)
    loop = framework.loop(model, optimizer)
    config: dict[str, Any] = {**CONFIG, "format": ["csv", *names], "alert": {"grace_seconds": 300}}
    config["trackers"] = {**CONFIG["trackers"], "report": how == "report"}
    monitor = framework.TrainerMon(config)
    monitor.set_monitor(model, 1, optimizer)
    programs += [PROGRAMS[name](how) for name in names if how == "later"]
    for step in range(STEPS):
        monitor.log(loss=step / 4)
        train_step(loop, framework.tensor(X * np.nan if step >= BAD else X))
        for program in programs:
            program.log(step)
    monitor.stop()
    for program in programs:
        program.end()
    sys.stdout.write(f"\n{MARK}{json.dumps({'faults': monitor.faults})}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
