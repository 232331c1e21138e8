"""Cost of ``probe run``: a step after it has attached, beside the three lines; calls of a model before that; the start.

Trainings take turns in one process, each on a model of its own with the same weights, and the result is the median of
the paired differences. Starts of processes take turns likewise.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _history import Figure
from _quiet import spread, take_turns
from _report import Array, Part, arguments, interval, milliseconds, publish_parts, table, verdict

ROOT = Path(__file__).parents[1]
WARM_UP = 4
AIM_STEP = 0.005
"""Largest difference between a step under ``probe run`` and one with the three lines, as a fraction of a plain step."""
AIM_CALL = 1e-6
"""Longest time that a call of a module may take longer before the monitor attaches, in seconds."""
AIM_START = 0.3
"""Longest time that a process may start later, in seconds."""
SCRIPTS = {
    "a script that imports nothing": "pass\n",
    "a script that makes an optimizer": (
        "import torch\nnet = torch.nn.Linear(2, 1)\noptimizer = torch.optim.AdamW(net.parameters())\n"
        "net(torch.ones(1, 2)).sum().backward()\noptimizer.step()\n"
    ),
}


# In the process that measures.


def run_case(text: str) -> None:
    """Measure steps and calls; print the result."""
    case = argparse.Namespace(**json.loads(text))
    import torch

    torch.set_num_threads(case.threads)
    print(json.dumps({"steps": steps(case), "calls": calls(case)}))


def steps(case: argparse.Namespace) -> dict[str, Any]:
    """Measure seconds a step: plain, with the three lines, and under ``probe run``; first without any of these."""
    from _gpt import Training

    from probe.pytorch import TrainerMon

    trainings: dict[str, Any] = {name: Training() for name in ("plain", "three lines")}
    prepare(case.config)
    trainings["probe run"] = Training()
    blocks = {name: block(training, case.block) for name, training in trainings.items()}
    attach = held_back(trainings["probe run"])
    unwatched = take_turns(blocks, WARM_UP + case.rounds).seconds[WARM_UP:]
    by_hand = TrainerMon(case.config)
    by_hand.set_monitor(trainings["three lines"].model, 1, trainings["three lines"].optimizer)
    run = attach()
    for name, monitor in (("three lines", by_hand), ("probe run", run)):
        blocks[name] = block(trainings[name], case.block, monitor.flush)
    for _ in range(WARM_UP):
        for take in blocks.values():
            take()
    measured = take_turns(blocks, case.rounds)
    for monitor in (by_hand, run):
        if monitor.faults or not monitor.cost["steps"]:
            raise RuntimeError(f"probe failed inside, so its cost means nothing: {monitor.faults}")
        monitor.stop()
    return {"unwatched": unwatched, "seconds": measured.seconds, "disturbed": measured.disturbed}


def prepare(config: str) -> None:
    """Prepare this process as ``probe run`` does."""
    from probe.launch import preparation
    from probe.launch.environment import watched

    os.environ.update(watched(os.environ, Path(config)))
    preparation.prepare(os.environ)


def held_back(training: Any) -> Callable[[], Any]:
    """Keep the watch from attaching to a new optimizer; return a function that lets it, and returns its monitor."""
    from probe.pytorch.finding import WATCH

    WATCH._rest()

    def attach() -> Any:
        WATCH.made(training.optimizer)
        training.step()
        return WATCH._runs[-1].monitor

    return attach


def block(training: Any, number: int, flush: Callable[[], Any] | None = None) -> Callable[[], float]:
    """Function that takes several steps, waits until all is written, and returns the seconds a step."""

    def run() -> float:
        begin = time.perf_counter()
        for _ in range(number):
            training.step()
        if flush is not None:
            flush()
        return (time.perf_counter() - begin) / number

    return run


def calls(case: argparse.Namespace) -> dict[str, Any]:
    """Measure seconds a call of a module in an evaluation, with and without a watch that waits for training."""
    import torch
    from _gpt import Training

    from probe.pytorch.finding import WATCH

    training = Training(layers=2, width=8, heads=1, tokens=4)
    model = training.model.eval()
    ids = torch.zeros((1, 4), dtype=torch.long)
    number = sum(len([*module.children()]) == 0 or module is model for module in model.modules())
    number += len(model.layers)

    def evaluate() -> float:
        begin = time.perf_counter()
        with torch.no_grad():
            for _ in range(case.calls):
                model(ids)
        return (time.perf_counter() - begin) / (case.calls * number)

    def waiting() -> float:
        WATCH.made(training.optimizer)
        try:
            return evaluate()
        finally:
            WATCH._rest()

    measured = take_turns({"plain": evaluate, "waiting": waiting}, WARM_UP + case.rounds)
    return {"seconds": measured.seconds[WARM_UP:], "modules": number}


# In the process that publishes.


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Measure steps and calls in a process of its own."""
    with tempfile.TemporaryDirectory() as scratch:
        config = Path(scratch, "monitor.json")
        config.write_text(json.dumps({"wg_distribution": True, "ops": ["norm", "min", "max", "nans"]}))
        case = {name: getattr(args, name) for name in ("rounds", "block", "threads", "calls")}
        case["config"] = str(config)
        done = subprocess.run(
            [sys.executable, __file__, "--case", json.dumps(case)],
            env=os.environ | {"PYTHONPATH": str(ROOT), "MONITOR_OUTPUT_DIR": f"{scratch}/output"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.exit(f"the measuring process failed: {done.stderr.strip()}")
        return dict(json.loads(done.stdout.splitlines()[-1]))


def starts(rounds: int, text: str) -> Array:
    """Seconds of processes that run a script by ``python`` and by ``probe run``, which take turns."""
    with tempfile.TemporaryDirectory() as scratch:
        Path(scratch, "script.py").write_text(text)
        own = os.environ | {"PYTHONPATH": str(ROOT), "MONITOR_OUTPUT_DIR": f"{scratch}/output"}

        def started(*words: str) -> Callable[[], float]:
            def run() -> float:
                begin = time.perf_counter()
                command = [sys.executable, *words, "script.py"]
                subprocess.run(command, cwd=scratch, env=own, check=True, capture_output=True)
                return time.perf_counter() - begin

            return run

        turns = {"python": started(), "probe run": started("-m", "probe", "run")}
        return np.array(take_turns(turns, 1 + rounds).seconds[1:])


def step_part(result: dict[str, Any]) -> Part:
    """Rows about steps after attaching."""
    seconds, unwatched = np.array(result["seconds"]), np.array(result["unwatched"])
    seconds = seconds - np.array([0.0, *(float(np.median(unwatched[:, i] - unwatched[:, 0])) for i in (1, 2))])
    plain = float(np.median(seconds[:, 0]))

    def added(variant: int, beside: int) -> Figure:
        return interval(lambda s: np.median(s[..., variant] - s[..., beside], axis=-1) / plain, seconds)

    between = added(2, 1)
    rows = [
        ["the three lines, beside plain", *shown(added(1, 0)), "-"],
        ["`probe run`, beside plain", *shown(added(2, 0)), "-"],
        ["`probe run`, beside the three lines", *shown(between), verdict(AIM_STEP, *between[1:])],
    ]
    header = [f"of a plain step of {milliseconds(plain)}", "difference", "interval", f"aim <= {AIM_STEP:.1%}"]
    note = f"{result['disturbed']} of {len(seconds)} rounds were disturbed by other processes."
    return Part([table(header, rows), note], {}, spread(seconds[:, 0]))


def shown(figure: Figure) -> list[str]:
    """Cells of a fraction and its interval."""
    return [f"{figure[0]:.2%}", f"{figure[1]:.2%} to {figure[2]:.2%}"]


def call_part(result: dict[str, Any]) -> Part:
    """Row about calls before attaching."""
    seconds = np.array(result["seconds"])
    found = interval(lambda s: np.median(s[..., 1] - s[..., 0], axis=-1), seconds)
    text = f"{1e6 * found[0]:.2f} us ({1e6 * found[1]:.2f} to {1e6 * found[2]:.2f})"
    rows = [[f"evaluation of a model of {result['modules']} modules", text, verdict(AIM_CALL, *found[1:])]]
    return Part([table(["before attaching", "a call takes longer by", f"aim <= {1e6 * AIM_CALL:g} us"], rows)], {})


def start_part(args: argparse.Namespace) -> Part:
    """Rows about the start of processes."""
    rows = []
    for name, text in SCRIPTS.items():
        found = interval(lambda s: np.median(s[..., 1] - s[..., 0], axis=-1), starts(args.starts, text))
        cells = f"{milliseconds(found[0])} ({milliseconds(found[1])} to {milliseconds(found[2])})"
        rows.append([name, cells, verdict(AIM_START, *found[1:])])
    return Part([table(["start and end", "takes longer by", f"aim <= {AIM_START} s"], rows)], {})


def main() -> None:
    parser = arguments(__doc__, rounds=60)
    parser.add_argument("--block", type=int, default=3, help="steps in one turn")
    parser.add_argument("--calls", type=int, default=200, help="evaluations in one turn")
    parser.add_argument("--starts", type=int, default=15, help="starts of a process of each kind")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case:
        return run_case(args.case)
    result = measure(args)
    parts = [
        step_part(result["steps"]),
        call_part(result["calls"]),
        start_part(args),
        Part([NOTE.format(args=args)], {}),
    ]
    return publish_parts("What `probe run` costs", parts, args.output)


NOTE = (
    "Gradients with ops norm, min, max and nans in every step, CSV files, default alerts. Medians of {args.rounds} "
    "paired differences in blocks of {args.block} steps, each ending when its files were written; in brackets the 95 % "
    "bootstrap interval. What the models differed by before anything was attached is subtracted."
)

if __name__ == "__main__":
    main()
