"""Memory over a long run: each sink, the rules, all of them together, and a training that is watched."""

from __future__ import annotations

import argparse
import ctypes
import gc
import logging
import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from _report import Array, arguments, publish, table

from probe.core.config.schema import RULE_ARGS
from probe.core.moments import columns_for
from probe.core.output.sinks import SINKS
from probe.core.output.sinks.context import SinkContext
from probe.core.records import Batch, Key, Snapshot
from probe.core.rules import RULES, Rule, factory
from probe.core.rules.evaluate import find

OPS = ("min", "max", "mean", "norm", "zeros")
ROWS = {"actv": 12, "grad_reduced": 8, "exp_avg_sq": 8, "param_updated": 8}
STEPS_A_FILE = 100
SAMPLES = 40
"""Number of measurements in a run; the later half of them counts."""
FLAT = 20.0
"""Growth in bytes a step, over the last half, below which memory counts as flat: a megabyte in 50,000 steps."""
FORMATS = ("csv", "sqlite", "tensorboard", "parquet")
ARGUMENTS = {"AnomalyTurbulence": {"threshold": 0.5}, "AnomalyThreshold": {"above": 1e9}}
TRAINING, RULE, ALL = "training, all formats and rules", "rules", "all of these"
CONTESTANTS = (*SINKS, RULE, ALL, TRAINING)
Step = Callable[[int], object]


class Course(NamedTuple):
    """Course of the memory of one process."""

    steps: Array
    resident: Array
    """Resident bytes at each of ``steps``, after free memory was returned to the system."""

    @property
    def slope(self) -> float:
        """Growth in bytes a step over the last half, by least squares."""
        half = len(self.steps) // 2
        return float(np.polyfit(self.steps[half:], self.resident[half:], 1)[0])


def snapshot(step: int, generator: np.random.Generator) -> Snapshot:
    """Snapshot of a tiny model: values that change, under names that stay."""
    batches = [_batch(signal, rows, step, generator) for signal, rows in ROWS.items()]
    return Snapshot(step, 0, 1.7e9 + step, batches, OPS, cost={"hooks": 0.01, "drain": 0.001})


def _batch(signal: str, rows: int, step: int, generator: np.random.Generator) -> Batch:
    columns = {name: np.abs(generator.normal(1, 0.1, rows)) for name in columns_for(OPS)}
    inner = signal == "actv"
    keys = tuple(Key(f"layers.{i // 4}.part{i % 4}", "output" if inner else "") for i in range(rows))
    shapes, dtypes = ((16, 16),) * rows, ("torch.float32",) * rows
    return Batch(signal, step, keys, shapes, dtypes, np.arange(rows), columns, micro_stepped=inner)


def rules() -> list[Rule]:
    """Rules, one of each kind."""
    return [factory(name)(RULE_ARGS[name](**ARGUMENTS.get(name, {})), 0, OPS) for name in RULES]


def writing(contestant: str, root: Path) -> Step:
    """Function that writes one snapshot after the other, as the delivery thread does."""
    context = SinkContext(directory=root / "run", root=root, rank=0, steps_per_file=STEPS_A_FILE, dump=True)
    names = list(SINKS) if contestant == ALL else [] if contestant == RULE else [contestant]
    judges = rules() if contestant in (ALL, RULE) else []
    sinks, generator = [SINKS[name](context) for name in names], np.random.default_rng(0)
    for sink in sinks:
        sink.open()

    def write(step: int) -> None:
        given = snapshot(step, generator)
        judged = replace(given, findings=tuple(find(judges, given.batches)))
        for sink in sinks:
            sink.write(judged)

    return write


def training(root: Path) -> Step:
    """Function that trains a perceptron with everything watched, written in every format and judged by every rule."""
    import torch

    from probe.pytorch import TrainerMon

    torch.manual_seed(0)
    torch.set_num_threads(1)
    os.environ["MONITOR_OUTPUT_DIR"] = str(root)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    on = ("xy_distribution", "all_xy", "wg_distribution", "mv_distribution", "param_distribution")
    alerts = [{"rule_name": name, "args": ARGUMENTS.get(name, {})} for name in RULES]
    monitor = TrainerMon(
        dict.fromkeys(on, True)
        | {"format": list(FORMATS), "ops": list(OPS), "step_count_per_record": STEPS_A_FILE}
        | {"alert": {"rules": alerts, "dump": True}}
    )
    monitor.set_monitor(model, 1, optimizer)
    x = torch.randn(32, 8)

    def step(_: int) -> None:
        optimizer.zero_grad()
        (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()

    return step


def courses(contestant: str, steps: int, root: Path) -> Course:
    """Take ``steps`` steps of ``contestant`` in this process, which should be fresh."""
    logging.getLogger("probe").addHandler(logging.NullHandler())  # findings by the thousand
    step = training(root) if contestant == TRAINING else writing(contestant, root)
    at, resident = [], []
    for number in range(steps):
        step(number)
        if (number + 1) % (steps // SAMPLES) == 0:
            at.append(number + 1.0)
            resident.append(_resident())
    return Course(np.array(at), np.array(resident))


def _resident() -> float:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return float(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def in_own_process(contestant: str, steps: int) -> Course:
    """Call :func:`courses` in a process of its own, which leaves nothing behind."""
    with tempfile.TemporaryDirectory() as folder, multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(courses, (contestant, steps, Path(folder)))


def _rows(measured: Iterator[tuple[str, Course]]) -> Iterator[list[str]]:
    for contestant, course in measured:
        first, half, last = (course.resident[i] / 1e6 for i in (0, len(course.resident) // 2, -1))
        flat = "flat" if course.slope < FLAT else f"MISSED: expected less than {FLAT:g}"
        yield [contestant, f"{first:.1f}", f"{half:.1f}", f"{last:.1f}", f"{course.slope:.1f}", flat]


def main() -> None:
    parser = arguments(__doc__, rounds=1)
    parser.add_argument("--steps", type=int, default=100_000, help=f"steps of each, {SAMPLES} at least")
    parser.add_argument("--only", choices=CONTESTANTS, nargs="+", default=CONTESTANTS, metavar="NAME")
    args: argparse.Namespace = parser.parse_args()
    rows = list(_rows((name, in_own_process(name, args.steps)) for name in args.only))
    note = (
        f"{args.steps:,} steps of a tiny model, {sum(ROWS.values())} rows with {len(OPS)} values a step. Resident "
        f"memory in MB after the first {args.steps // SAMPLES:,} steps, in the middle and at the end, free memory "
        "returned to the system before; bytes a step over the last half."
    )
    header = ["", "at first", "middle", "end", "bytes a step", ""]
    publish("Memory of a long run", [note, table(header, rows)], args.output)


if __name__ == "__main__":
    main()
