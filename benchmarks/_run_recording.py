"""Recordings of the numbers of runs: healthy ones, and ones in which something is broken at one step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from _healthy import Training

from probe.core.run_state.rules import RunStep

STEPS = {"gpt bfloat16 autocast": 300, "gpt bfloat16": 300, "encoder": 300, "words": 300, "convolutions": 350}
"""Steps of the trainings that take long; the others take more."""
USUAL = 900


class Broken(NamedTuple):
    """Fault that is planted at one step."""

    kind: str
    at: int
    strength: float
    steps: int = 1


class RunCase(NamedTuple):
    """Run with its seed, its length, and its fault if it is not healthy."""

    name: str
    seed: int
    steps: int
    broken: Broken | None = None

    @property
    def file(self) -> str:
        """Name of the recording."""
        fault = (
            ""
            if self.broken is None
            else f"-{self.broken.kind}-{self.broken.at}-{self.broken.strength:g}-{self.broken.steps}"
        )
        return f"{self.name.replace(' ', '_').replace(',', '')}-{self.seed}-{self.steps}{fault}.npz"


Recording = dict[str, np.ndarray]


def break_rate(training: Training, strength: float) -> Callable[[], None]:
    """Multiply the learning rate of one update."""
    for group in training.optimizer.param_groups:
        group["lr"] *= strength
    return lambda: None


def break_gradients(training: Training, strength: float) -> Callable[[], None]:
    """Multiply the gradients of one update."""
    hooks = [
        each.register_hook(lambda gradient: gradient * strength)
        for each in training.model.parameters()
        if each.requires_grad
    ]

    def mend() -> None:
        for hook in hooks:
            hook.remove()

    return mend


FAULTS = {"rate": break_rate, "gradients": break_gradients}


def record(case: RunCase, text: bytes) -> Recording:
    """Run a training and return its numbers by name, one a step; NaN where a step has none."""
    from _healthy_runs import RUNS

    torch.set_num_threads(1)
    training: Any = RUNS[case.name](case.seed, text)
    rows: list[dict[str, float]] = []
    for step in range(case.steps):
        broken = case.broken
        now = broken is not None and broken.at <= step < broken.at + broken.steps
        mend = FAULTS[broken.kind](training, broken.strength) if now and broken is not None else None
        wall, own = time.perf_counter(), time.process_time()
        values = training.step()
        rows.append({**values, "wall": time.perf_counter() - wall, "own": time.process_time() - own})
        if mend is not None:
            mend()
    names = {name for row in rows for name in row}
    return {name: np.array([row.get(name, np.nan) for row in rows]) for name in sorted(names)}


def kept_or_recorded(case: RunCase, text: bytes, folder: Path | None) -> Recording:
    """Load a recording from ``folder`` if it is there; else record it and keep it there."""
    path = None if folder is None else folder / case.file
    if path is not None and path.exists():
        with np.load(path) as data:
            return dict(data)
    recording = record(case, text)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial.npz")
        np.savez_compressed(partial, **recording)
        partial.replace(path)
    return recording


def steps_of(recording: Recording, seconds: np.ndarray) -> Iterator[RunStep]:
    """Yield the steps of a recording as rules get them, with these times; throughput is in samples or tokens."""
    times = ("wall", "own", "skipped")
    skipped = recording.get("skipped", np.zeros(len(seconds)))
    now = 1.7e9
    for n, took in enumerate(seconds.tolist()):
        now += took
        values = {name: float(column[n]) for name, column in recording.items() if name not in times}
        values["step_seconds"] = took if n else float("nan")
        work = values.get("tokens", values.get("batch_size"))
        if work is not None and n:
            values["throughput"] = work / took
        yield RunStep(n, now, values["step_seconds"], "skipped" if skipped[n] else "applied", values)
