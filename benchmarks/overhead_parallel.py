"""Cost of watching the weight gradients of distributed training: FSDP2, DeepSpeed ZeRO-2 and Megatron-Core, two
processes each.

Plain and watched training take turns in the same processes, each on a model of its own. The existing tool has processes
of its own, since it replaces functions that all trainings of a process share.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from _quiet import spread
from _report import (
    Array,
    Part,
    Rows,
    arguments,
    difference,
    merged,
    milliseconds,
    of_the_step,
    publish_parts,
    table,
    verdict,
)

ROOT = Path(__file__).parents[1]
RANKS, WARM_UP = 2, 4
AIM = 0.12
"""Largest time that probe may add, as a fraction of the plain step."""
AIM_COMPARED = 0.5
"""Largest time that probe may add, as a fraction of the time that the existing tool adds."""
SECONDS = 900
"""Time limit of a measurement."""


def run_case(text: str) -> None:
    """Run a case in each process of a measurement; the first one writes the result."""
    from _gpt_parallel import TRAININGS, join
    from _monitors import configuration

    case = argparse.Namespace(**json.loads(text))
    scratch = Path(case.scratch)
    join()
    trainings = [TRAININGS[case.training]() for _ in range(2)]
    unwatched = take_turns(trainings, WARM_UP + case.rounds, case.block)[WARM_UP:]
    monitor = attach(case.tool, trainings[1], case.training, configuration("weight gradients"), scratch)
    take_turns(trainings, WARM_UP, case.block)
    seconds = take_turns(trainings, case.rounds, case.block, getattr(monitor, "flush", None))
    if faults := getattr(monitor, "faults", None):
        raise RuntimeError(f"probe failed inside, so its cost means nothing: {faults}")
    if case.tool == "probe" and not monitor.cost["steps"]:
        raise RuntimeError("probe has seen no step")
    if os.environ["RANK"] == "0":
        (scratch / "result.json").write_text(json.dumps({"unwatched": unwatched, "seconds": seconds}))
    import torch.distributed as dist

    dist.barrier()
    os._exit(0)  # output at exit is not measured


def attach(tool: str, training: Any, name: str, config: dict[str, Any], scratch: Path) -> Any:
    """Attach probe's monitor or that of the existing tool."""
    import importlib

    directory = scratch / f"output{os.environ['RANK']}"
    directory.mkdir()
    os.environ["MONITOR_OUTPUT_DIR"] = str(directory)
    file = scratch / f"config{os.environ['RANK']}.json"
    file.write_text(json.dumps(config))
    monitor_class = importlib.import_module({"probe": "probe.pytorch", "existing tool": "msprobe.pytorch"}[tool])
    monitor = monitor_class.TrainerMon(str(file), params_have_main_grad=name == "Megatron-Core")
    monitor.set_monitor(training.model, grad_acc_steps=1, optimizer=training.optimizer)
    return monitor


def take_turns(trainings: list[Any], rounds: int, block: int, flush: Any = None) -> list[list[float]]:
    """Measure the seconds a step of each, in rounds that begin with another each time; all ranks take the same
    turns."""
    import torch.distributed as dist

    measured = []
    for turn in range(rounds):
        seconds = [0.0, 0.0]
        for i in (turn % 2, 1 - turn % 2):
            dist.barrier()
            begin = time.perf_counter()
            for _ in range(block):
                trainings[i].step()
            if flush is not None and i == 1:
                flush()
            dist.barrier()
            seconds[i] = (time.perf_counter() - begin) / block
        measured.append(seconds)
    return measured


def measure(args: argparse.Namespace, training: str, tool: str) -> dict[str, Any] | str:
    """Measure in processes of its own; return the last line of output if it does not run."""
    from _gpt_parallel import PACKAGES

    with tempfile.TemporaryDirectory() as scratch:
        case = {"training": training, "tool": tool, "rounds": args.rounds, "block": args.block, "scratch": scratch}
        path = [str(Path(sys.prefix) / "versions" / PACKAGES[training]), str(ROOT)]
        shared = {"PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1", "MEETING": f"{scratch}/meeting"}
        processes = [
            subprocess.Popen(
                [sys.executable, __file__, "--case", json.dumps(case)],
                env=os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                cwd=scratch,
            )
            for rank in range(RANKS)
        ]
        try:
            printed = [process.communicate(timeout=SECONDS)[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
        result = Path(scratch, "result.json")
        if any(process.returncode for process in processes) or not result.exists():
            return next((lines[-1] for lines in (text.strip().splitlines() for text in printed) if lines), "no output")
        return dict(json.loads(result.read_text()))


def without_offset(result: dict[str, Any]) -> Array:
    """Seconds less the difference between the models before anything was attached."""
    seconds: Array = np.array(result["seconds"])
    return seconds - np.array([0.0, float(difference(np.array(result["unwatched"]), 1))])


def row(args: argparse.Namespace, training: str) -> Rows:
    """Measure one training; return its row."""
    ours = measure(args, training, "probe")
    if isinstance(ours, str):
        sys.exit(f"{training}: the measuring processes failed: {ours}")
    seconds = without_offset(ours)
    plain, more = float(np.median(seconds[:, 0])), float(difference(seconds, 1))
    figure = of_the_step(seconds)
    ratio, low, high = figure
    judged = f"{ratio:.1%} ({low:.1%} to {high:.1%}): {verdict(AIM, low, high)}"
    figures = {f"{training}, of the step": figure}
    cells = [training, milliseconds(plain), milliseconds(more), judged]
    theirs = measure(args, training, "existing tool")
    if isinstance(theirs, str):
        return Rows([[*cells, f"does not run: {theirs[:80]}", "-"]], figures, spread(seconds[:, 0]))
    tool = float(difference(without_offset(theirs), 1))
    compared = f"{more / tool:.2f}: {verdict(AIM_COMPARED * tool, more)}"
    return Rows([[*cells, milliseconds(tool), compared]], figures, spread(seconds[:, 0]))


def main() -> None:
    parser = arguments(__doc__, rounds=30)
    parser.add_argument("--block", type=int, default=3, help="steps in one turn")
    parser.add_argument("--only", nargs="*", help="some of the trainings")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case:
        return run_case(args.case)
    from _gpt_parallel import TRAININGS

    only = args.only or [*TRAININGS]
    if unknown := set(only) - {*TRAININGS}:
        parser.error(f"--only: unknown: {', '.join(sorted(unknown))}")
    header = ["", "plain step", "probe adds", f"of the step (aim <= {AIM:.0%})", "existing tool adds"]
    rows = merged([row(args, training) for training in TRAININGS if training in only])
    lines = [table([*header, f"probe / existing (aim <= {AIM_COMPARED})"], rows.rows), NOTE.format(args=args)]
    part = Part(lines, rows.figures, rows.spread)
    return publish_parts("What watching weight gradients costs a step in two processes", [part], args.output)


NOTE = (
    "A GPT of 4 layers and width 256, batch 2 x 64 tokens a process, one thread each, gloo; ops min, max, mean, norm "
    "and nans, CSV files, alerts off. Medians of {args.rounds} paired differences in blocks of {args.block} steps, "
    "each ending when its files were written; in brackets the 95 % bootstrap interval. What the two models differed "
    "by before anything was attached is subtracted."
)

if __name__ == "__main__":
    main()
