"""Recordings of the batches of a training, kept so that rules can be run on them again and again."""

from __future__ import annotations

import pickle
from collections.abc import Hashable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from _healthy import Training

from probe.core.output.sinks import SINKS
from probe.core.records import Batch, Snapshot

OPS = ("min", "max", "mean", "norm", "nans", "zeros")
CONFIGURATION = {
    "param_distribution": True,
    "wg_distribution": True,
    "mv_distribution": True,
    "xy_distribution": True,
    "all_xy": True,
    "ops": list(OPS),
    "format": "api",
    "squash_name": False,
    "alert": {"rules": []},
}
"""Configuration that watches everything, judges nothing and writes nothing."""


MODULES = {"pytorch": "torch", "mindspore": "mindspore"}
STEPS = {
    "pytorch": {
        "gpt": 110,
        "gpt deep": 200,
        "gpt wide": 200,
        "gpt bfloat16 autocast": 400,
        "gpt bfloat16": 400,
        "encoder": 300,
        "lstm": 400,
        "gru": 400,
        "mlp": 400,
        "words": 300,
        "convolutions": 350,
        "regression": 500,
        "adapters": 400,
    },
    "mindspore": {"mindspore gpt": 110, "mindspore mlp": 300},
}
"""Number of steps of each training; here, as importing a framework for its list of names takes seconds."""


class Case(NamedTuple):
    """Training with its seed and length."""

    framework: str
    name: str
    seed: int
    steps: int


class Keeper:
    """Sink that keeps the batches of each step."""

    def __init__(self) -> None:
        self.steps: list[Sequence[Batch]] = []
        self._same: dict[Hashable, Any] = {}

    def open(self) -> None:
        """Do nothing."""

    def write(self, snapshot: Snapshot) -> None:
        self.steps.append([self._lean(batch) for batch in snapshot.batches])

    def close(self) -> None:
        """Do nothing."""

    def _lean(self, batch: Batch) -> Batch:
        """Copy of a batch that shares equal keys, shapes and dtypes with other steps."""
        same = {name: getattr(batch, name) for name in ("keys", "shapes", "dtypes")}
        return replace(batch, **{name: self._same.setdefault(value, value) for name, value in same.items()})


def names() -> dict[str, dict[str, int]]:
    """Trainings of each framework that is installed, with their numbers of steps."""
    return {framework: STEPS[framework] for framework in STEPS if find_spec(MODULES[framework])}


def _begin(case: Case, text: bytes) -> tuple[Any, Training]:
    if case.framework == "mindspore":
        from _healthy_mindspore import TRAININGS as CELLS

        from probe.mindspore import TrainerMon as CellMonitor

        return CellMonitor, CELLS[case.name](case.seed, text)
    import torch
    from _healthy_pytorch import TRAININGS

    from probe.pytorch import TrainerMon

    torch.set_num_threads(1)
    return TrainerMon, TRAININGS[case.name](case.seed, text)


def record(case: Case, text: bytes) -> list[Sequence[Batch]]:
    """Run a training and return the batches of each step.

    Raises:
        RuntimeError: if the monitor counted faults.
    """
    kept = Keeper()
    monitor_class, training = _begin(case, text)
    SINKS["api"] = lambda _: kept
    try:
        monitor = monitor_class(CONFIGURATION, params_have_main_grad=False)
        monitor.set_monitor(training.model, training.micro_batches, training.optimizer)
        with monitor:
            for _ in range(case.steps):
                training.step()
    finally:
        del SINKS["api"]
    if monitor.faults:
        raise RuntimeError(f"{case}: {monitor.faults}")
    return kept.steps


def file_of(folder: Path, case: Case) -> Path:
    """Path of a recording."""
    return folder / f"{case.name.replace(' ', '_')}-{case.seed}-{case.steps}.pickle"


def kept(folder: Path) -> list[Case]:
    """Recordings in ``folder``."""
    found = []
    for path in sorted(folder.glob("*.pickle")):
        name, seed, steps = path.stem.rsplit("-", 2)
        framework = "mindspore" if name.startswith("mindspore") else "pytorch"
        found.append(Case(framework, name.replace("_", " "), int(seed), int(steps)))
    return found


def kept_or_recorded(case: Case, text: bytes, folder: Path | None) -> list[Sequence[Batch]]:
    """Load a recording from ``folder`` if it is there; else record it and keep it there."""
    if folder is None:
        return record(case, text)
    path = file_of(folder, case)
    if path.exists():
        return pickle.loads(path.read_bytes())
    steps = record(case, text)
    folder.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_bytes(pickle.dumps(steps, protocol=pickle.HIGHEST_PROTOCOL))
    partial.replace(path)
    return steps
