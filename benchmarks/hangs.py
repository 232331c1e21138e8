"""Detection of runs that stand still: false alarms in healthy trainings, and planted hangs that are found.

    python benchmarks/hangs.py [--keep FOLDER] [--rounds 3] [--jobs 4]

The step times of recorded healthy trainings (those of ``run_rules.py``, in the same folder) are judged by the budgets
that the watcher uses, as they are and stretched so that a step takes seconds or minutes. What is stretched is the least
of all rounds in seconds of the processor: a tenth of a second that another process took would become minutes.

Then 20 trainings stand still in different ways, and the time from the end of the budget to the alert is measured: a
real watcher, a real file.

Exit code 1 if there is a false alarm, if a hang is missed, or if an alert comes later than the budget plus 2 s.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from _healthy import texts
from _report import arguments, publish, table, verdict
from _run_recording import STEPS, USUAL, RunCase, kept_or_recorded

from probe.core.config.schema import HangSettings
from probe.core.run_state.budget import Budget, stretches
from probe.core.run_state.progress_file import BUCKETS, SUFFIX, UNIT_BITS, ProgressReader, bucket_of

ROOT = Path(__file__).resolve().parents[1]
LATEST = 2.0
"""Longest time from the end of the budget to the alert."""
PATIENCE = 60.0
MEDIANS = (None, 5.0, 60.0, 600.0)
"""Seconds to which the median step is stretched; None: as recorded."""
SETTINGS = {"floor_seconds": 2.0, "startup_seconds": 8.0}
"""Settings of the planted hangs: the shortest possible wait."""
LOADER, FORWARD, LOCK, STOPPED, START = "loader", "forward", "held lock", "SIGSTOP", "before the first step"
PHASES = ("checkpoint", "evaluation")
KINDS = (LOADER, FORWARD, LOCK, STOPPED, START, *PHASES)
PLANTED = 20


# Healthy trainings.


class Judged(NamedTuple):
    """Steps that were judged, and those that were longer than their budget."""

    steps: int
    alarms: int


def judged(seconds: np.ndarray) -> Judged:
    """Judge each step by the budget that the steps before it give."""
    defaults = HangSettings()
    budget = Budget(defaults.floor_seconds, defaults.startup_seconds)
    counts, alarms = [0] * BUCKETS, 0
    for took in seconds.tolist():
        alarms += took > budget.seconds("step", stretches(counts))
        counts[bucket_of(int(took * 1e9) >> UNIT_BITS)] += 1
    return Judged(len(seconds), alarms)


def healthy_rows(args: argparse.Namespace) -> list[list[str]]:
    """Rows of the table of false alarms."""
    from _healthy_runs import RUNS

    with tempfile.TemporaryDirectory() if args.keep is None else nullcontext(args.keep) as folder:
        cases = [RunCase(name, seed, STEPS.get(name, USUAL)) for seed in range(args.rounds) for name in RUNS]
        text = texts([])[0]
        recorded = {case: kept_or_recorded(case, text, Path(folder)) for case in cases}
    walls = [recording["wall"][1:] for recording in recorded.values()]
    least = [
        np.minimum.reduce([recording["own"][1:] for case, recording in recorded.items() if case.name == name])
        for name in RUNS
    ]
    rows = []
    for median in MEDIANS:
        found = [judged(times) for times in walls]
        if median is not None:
            found = [judged(times * (median / np.median(times))) for times in least]
        name = "as recorded" if median is None else f"{median:g} s in the median"
        steps, alarms = (sum(column) for column in zip(*found, strict=True))
        rows.append([name, f"{len(found)}", f"{steps:,}", f"{alarms}: {verdict(0, alarms)}"])
    return rows


# Planted hangs.


class Hang(NamedTuple):
    """A hang that was planted, and when its alert came."""

    kind: str
    step: int
    budget: float
    """Seconds."""
    late: float | None
    """Seconds from the end of the budget to the alert; None if there was none."""


def train(kind: str, at: int) -> None:
    """Train until the hang."""
    import torch

    from probe.pytorch import TrainerMon

    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    channel = {"channel": "file", "severity": "info", "args": {"path": os.environ["ALERTS"]}}
    alert = {"channels": [channel], "group_seconds": 0}
    monitor = TrainerMon({"format": "api", "alert": alert, "run": {"hang": {"enable": True, **SETTINGS}}})
    monitor.set_monitor(model, 1, optimizer)
    for step in range(at + 1):
        here = step == at
        with monitor.phase("data"):
            stand_still(here and kind == LOADER)
        for phase in PHASES:
            if step % 10 == 5 or (here and kind == phase):
                with monitor.phase(phase):
                    time.sleep(0.02)
                    stand_still(here and kind == phase)
        stand_still(here and kind in (FORWARD, START))
        if here and kind == LOCK:
            sum(range(10**13))
        if here and kind == STOPPED:
            os.kill(os.getpid(), signal.SIGSTOP)
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.01)


def stand_still(here: bool) -> None:
    while here:
        time.sleep(1)


def planted(kind: str, at: int, folder: Path) -> Hang:
    """Plant a hang, and wait for its alert."""
    marks, alerts = folder / "marks", folder / "alerts.jsonl"
    own = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PROBE_PROGRESS_DIR": str(marks), "ALERTS": str(alerts)}
    environment = {**os.environ, **own, "MONITOR_OUTPUT_DIR": str(folder / "output")}
    command = [sys.executable, __file__, "--train", kind, "--at", str(at)]
    with subprocess.Popen(command, env=environment, stderr=(folder / "errors").open("w")) as process:
        try:
            until(lambda: hung(alerts), PATIENCE)
            seen = time.monotonic()
            if not (paths := [*marks.rglob(f"*{SUFFIX}")]):
                return Hang(kind, at, 0.0, None)
            reader = ProgressReader(paths[0])
            row = reader.row()
            assert row is not None
            budget = Budget(**SETTINGS).seconds(row.phase, stretches(reader.counts(row.phase)))
            late = seen - row.time / 1e9 - budget if hung(alerts) else None
            return Hang(kind, at, budget, late)
        finally:
            process.kill()


def hung(alerts: Path) -> bool:
    """Return whether an alert about a hang has come."""
    lines = alerts.read_text().splitlines() if alerts.exists() else []
    return any(each.get("kind") == "hang" for each in map(json.loads, lines))


def until(true: Callable[[], Any], seconds: float) -> None:
    """Wait for a true value, at most so long."""
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.02)


def hangs(args: argparse.Namespace) -> Iterator[Hang]:
    random = np.random.default_rng(args.first)
    cases = [(KINDS[n % len(KINDS)], 0 if KINDS[n % len(KINDS)] == START else int(random.integers(20, 200)))
             for n in range(PLANTED)]  # fmt: skip
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(args.jobs) as pool:
        folders = [Path(scratch) / str(number) for number in range(PLANTED)]
        for folder in folders:
            folder.mkdir()
        yield from pool.map(lambda case, folder: planted(*case, folder), cases, folders)


def main() -> None:
    """Measure, publish, and exit with 1 if an aim is missed."""
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--keep", type=Path, help="folder of recordings, made if missing")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--jobs", type=int, default=4, help="planted hangs at one time: they wait")
    parser.add_argument("--train", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--at", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.train:
        return train(args.train, args.at)
    found = list(hangs(args))
    rows = []
    for kind in KINDS:
        of_kind = [each for each in found if each.kind == kind]
        late = [each.late for each in of_kind if each.late is not None]
        every = "met" if len(late) == len(of_kind) else "MISSED"
        times = f"{np.median(late):.2f} s, at most {max(late):.2f} s: {verdict(LATEST, max(late))}" if late else "-"
        rows.append([kind, f"{len(late)} of {len(of_kind)}: {every}", times])
    healthy = healthy_rows(args)
    publish(
        "Runs that stand still",
        [
            table(["healthy trainings", "runs", "steps", "false alarms, aim 0"], healthy),
            "Default settings; each step judged by the budget that the steps before it give.",
            table(["planted hang", "found, aim all", f"alert after its budget, aim {LATEST:g} s"], rows),
            f"{PLANTED} trainings with a budget of at least {SETTINGS['floor_seconds']:g} s, {args.jobs} at one time.",
        ],
        args.output,
    )
    return sys.exit(any("MISSED" in cell for row in (*healthy, *rows) for cell in row))


if __name__ == "__main__":
    main()
