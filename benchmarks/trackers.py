"""Cost of a tracker of experiments for a training step, also of one whose client never answers.

    python benchmarks/trackers.py [--rounds 30] [--block 20]

A GPT of 149 parameter tensors trains in blocks of steps. In turns, nothing is tracked, or each step's norms and maxima
of all gradients and ten numbers of the run are passed to a tracker on the thread that writes files: to one that takes
200 series and drops them, to one whose client never answers, and to W&B offline, if it is installed. What is free at
the beginning of a run is spent before.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from _quiet import spread
from _report import Array, Part, arguments, milliseconds, of_the_step, publish_parts, table, verdict

from probe.core.faults import Faults
from probe.core.output.run_output import delivery
from probe.core.output.sinks.tracker import TrackerOutlet, TrackerSettings
from probe.core.records import Batch, Key, Snapshot
from probe.core.trackers import TRACKERS, TrackerPlace, TrackerTarget
from probe.core.trackers.tracker_thread import FREE_SECONDS

ROWS, SERIES, NUMBERS, QUEUE = 149, 200, 10, 8
OPS = ("norm", "max")
AIM = 0.001
"""Most that a tracker adds to a step."""


class QuietTracker:
    """Tracker that takes everything and keeps nothing."""

    def __init__(self, target: TrackerTarget) -> None:
        self.target = target

    def begin(self) -> None:
        """Begin nothing."""

    def log(self, rows: Sequence[Any]) -> None:
        """Drop ``rows``."""

    def alert(self, notice: Any) -> None:
        """Drop ``notice``."""

    def table(self, table: Any) -> None:
        """Drop ``table``."""

    def summary(self, texts: Mapping[str, Any]) -> None:
        """Drop ``texts``."""

    def artifact(self, path: Path) -> None:
        """Drop ``path``."""

    def end(self) -> None:
        """End nothing."""


class SilentTracker(QuietTracker):
    """Tracker whose client never answers."""

    def log(self, rows: Sequence[Any]) -> None:
        """Wait for ever, with ``rows``."""
        while rows:
            threading.Event().wait()


def snapshots(step: int, generator: np.random.Generator) -> tuple[Snapshot, Snapshot]:
    """Rows about the gradients of a step, and its numbers."""
    values = np.abs(generator.normal(1, 0.1, ROWS))
    keys, shapes = tuple(Key(f"layers.{i // 12}.part{i % 12}") for i in range(ROWS)), ((256, 256),) * ROWS
    columns = {"sumsq": values**2, "max": values}
    batch = Batch("grad_reduced", step, keys, shapes, ("torch.float32",) * ROWS, np.arange(ROWS), columns)
    names, blank = tuple(Key(f"number{i}") for i in range(NUMBERS)), ((),) * NUMBERS
    numbers = {"value": generator.normal(size=NUMBERS)}
    of_run = Batch("run", step, names, blank, ("float64",) * NUMBERS, np.arange(NUMBERS), numbers)
    about = Snapshot(step, 0, 1.7e9 + step, (batch,), OPS)
    return about, Snapshot(step, 0, 1.7e9 + step, (of_run,), ())


def outlets(undo: ExitStack) -> dict[str, TrackerOutlet]:
    """Outlet of each tracker, with nothing left of what is free."""
    chosen = {"200 series": "quiet", "a client that never answers": "silent"}
    here = sys.modules[__name__].__name__
    TRACKERS["quiet"] = TrackerPlace(f"{here}:QuietTracker", "numpy")
    TRACKERS["silent"] = TrackerPlace(f"{here}:SilentTracker", "numpy")
    if find_spec("wandb"):
        chosen["W&B offline"] = "wandb"
    made = {}
    for title, name in chosen.items():
        outlet = TrackerOutlet(name, TrackerTarget("benchmark", title, {}), TrackerSettings(seconds=0.2), 0, Faults())
        undo.callback(outlet.close, 10.0 if name == "wandb" else 0.0)
        generator = np.random.default_rng(0)
        for step in range(4):
            take(outlet, *snapshots(step, generator))
        outlet.budget.spend(FREE_SECONDS)
        made[title] = outlet
    time.sleep(3.0)  # clients begin their runs
    return made


def take(outlet: TrackerOutlet, *parts: Snapshot) -> None:
    """Pass both parts of a step to ``outlet``."""
    for part in parts:
        outlet.take(part)


def block(train: Callable[[], object], outlet: TrackerOutlet | None, steps: Sequence[tuple[Snapshot, ...]]) -> float:
    """Measure seconds a step while a thread passes each step on, until the last is."""
    worker = delivery(QUEUE, "wait", Faults())
    begin = time.perf_counter()
    for parts in steps:
        train()
        if outlet is not None:
            worker.submit(partial(take, outlet, *parts))
    worker.flush(60)
    seconds = time.perf_counter() - begin
    worker.close(60)
    return seconds / len(steps)


def measure(args: argparse.Namespace, undo: ExitStack) -> tuple[list[str], Array]:
    """Measure seconds a step in each round: first without a tracker, then with each, in turns."""
    from _gpt import Training

    made, train, number = outlets(undo), Training().step, iter(range(10, 10**9))
    generator = np.random.default_rng(1)
    contestants: list[TrackerOutlet | None] = [None, *made.values()]
    seconds = np.zeros((args.rounds, len(contestants)))
    for _ in range(5):
        train()
    for turn in range(args.rounds):
        for offset in range(len(contestants)):
            at = (turn + offset) % len(contestants)
            steps = [snapshots(next(number), generator) for _ in range(args.block)]
            seconds[turn, at] = block(train, contestants[at], steps)
    return list(made), seconds


def main() -> None:
    parser = arguments(__doc__, rounds=30)
    parser.add_argument("--block", type=int, default=20, help="steps in one turn")
    args = parser.parse_args()
    import torch

    torch.set_num_threads(args.threads)
    os.environ |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as undo:
        os.environ["WANDB_DIR"] = folder
        names, seconds = measure(args, undo)
    figures = {f"{name}, of the step": of_the_step(seconds[:, [0, i + 1]]) for i, name in enumerate(names)}
    rows = [
        [
            name,
            f"{100 * each.value:.2g} % ({100 * each.low:.2g} to {100 * each.high:.2g})",
            verdict(AIM, each.low, each.high),
        ]
        for name, each in zip(names, figures.values(), strict=True)
    ]
    note = (
        f"{ROWS} layers with {len(OPS)} ops and {NUMBERS} numbers of the run, {SERIES} series at most. Medians of "
        f"{args.rounds} rounds of {args.block} steps with 95 % intervals; a step takes "
        f"{milliseconds(float(np.median(seconds[:, 0])))}."
    )
    part = Part(
        [note, table(["tracker", "added to a step", f"aim <= {100 * AIM:g} %"], rows)], figures, spread(seconds[:, 0])
    )
    publish_parts("What a tracker of experiments costs", [part], args.output)


if __name__ == "__main__":
    main()
