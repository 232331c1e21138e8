"""Cost of each sink and rule for the training thread: run inline, and on the delivery thread in parallel."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from _quiet import spread
from _report import Array, Part, arguments, milliseconds, of_the_step, publish_parts, table

from probe.core.faults import Faults
from probe.core.moments import columns_for
from probe.core.output.run_output import delivery
from probe.core.output.sinks import SINKS
from probe.core.output.sinks.context import SinkContext
from probe.core.records import Batch, Key, Snapshot
from probe.core.rules import RULES, factory

CHOSEN = ("min", "max", "mean", "norm", "zeros")
ROWS = {"grad_unreduced": 149, "grad_reduced": 149, "param_origin": 149, "param_updated": 149}
ROWS |= {"exp_avg": 149, "exp_avg_sq": 149, "actv": 203, "actv_grad": 203}
"""Rows of each signal, 1,300 in all, with five values each: as the GPT of ``overhead.py`` with everything switched
on."""
QUEUE = 8
STEPS_A_FILE = 20
"""Steps in a file of the sink whose cost is by the file rather than by the row."""
Write = Callable[[Snapshot], object]


def snapshot(step: int) -> Snapshot:
    """Snapshot with values that change, under names that stay."""
    generator = np.random.default_rng(step)
    batches = [_batch(signal, rows, step, generator) for signal, rows in ROWS.items()]
    return Snapshot(step, 0, 1.7e9 + step, batches, CHOSEN, cost={"hooks": 0.01, "drain": 0.001})


def _batch(signal: str, rows: int, step: int, generator: np.random.Generator) -> Batch:
    columns = {name: np.abs(generator.normal(1, 0.1, rows)) for name in columns_for(CHOSEN)}
    columns["below"] = np.zeros(rows)
    inner = signal.startswith("actv")
    keys = tuple(Key(f"layers.{i // 12}.part{i % 12}", "output" if inner else "") for i in range(rows))
    shapes, dtypes = ((256, 1024),) * rows, ("torch.float32",) * rows
    return Batch(signal, step, keys, shapes, dtypes, np.arange(rows), columns, micro_stepped=inner)


def writers(root: Path) -> dict[str, Write]:
    """Functions that the delivery thread may call for a step: each sink, each rule."""
    context = SinkContext(directory=root / "run", root=root, rank=0)
    many = SinkContext(directory=root / "many", root=root, rank=0, steps_per_file=STEPS_A_FILE)
    made = [(name, name, context) for name, sink in SINKS.items() if not sink.numbers]  # those need a running monitor
    made.insert(len(made) - 1, ("parquet", f"parquet, {STEPS_A_FILE} steps a file", many))
    writes: dict[str, Write] = {}
    for name, title, where in made:
        try:
            sink = SINKS[name](where)
        except ImportError:
            continue  # its package is not installed here
        sink.open()
        writes[f"sink {title}"] = sink.write
    for name in RULES:
        rule = factory(name)(_arguments_of(name), 0, CHOSEN)
        writes[f"rule {name}"] = lambda s, rule=rule: [list(rule.judge(batch)) for batch in s.batches]
    return writes


def _arguments_of(rule: str) -> object:
    from probe.core.config.schema import RULE_ARGS

    args = {"AnomalyTurbulence": {"threshold": 0.5}, "AnomalyThreshold": {"above": 1e9}}.get(rule, {})
    return RULE_ARGS[rule](**args)


def training_step() -> Callable[[], object]:
    """Stand-in for training that holds the interpreter as training does: many small operators from Python."""
    import torch
    from _gpt import Training

    torch.manual_seed(0)
    return Training(layers=4, width=64, tokens=32).step


def while_training(train: Callable[[], object], write: Write | None, snapshots: list[Snapshot]) -> float:
    """Measure seconds a step while a thread writes each snapshot, until the last is written."""
    worker = delivery(QUEUE, "wait", Faults())
    begin = time.perf_counter()
    for each in snapshots:
        train()
        if write is not None:
            worker.submit(lambda each=each: write(each))
    worker.flush(60)
    seconds = time.perf_counter() - begin
    worker.close(60)
    return seconds / len(snapshots)


def inline(write: Write, snapshots: list[Snapshot]) -> float:
    """Measure the seconds to write one step while nothing else runs."""
    begin = time.perf_counter()
    for each in snapshots:
        write(each)
    return (time.perf_counter() - begin) / len(snapshots)


def measure(args: argparse.Namespace, root: Path) -> tuple[list[str], Array, Array]:
    """Measure seconds a step in each round: while training (first without writing), and inline; also return the
    names."""
    writes, train = writers(root), training_step()
    next_step = iter(range(10**9))

    def block() -> list[Snapshot]:
        return [snapshot(next(next_step)) for _ in range(args.block)]

    for write in writes.values():
        while_training(train, write, block())
    threaded, alone = [], []
    for _ in range(args.rounds):
        threaded.append([while_training(train, write, block()) for write in (None, *writes.values())])
        alone.append([inline(write, block()) for write in writes.values()])
    return list(writes), np.array(threaded), np.array(alone)


def main() -> None:
    parser = arguments(__doc__, rounds=15)
    parser.add_argument("--block", type=int, default=20, help="steps in one turn")
    args = parser.parse_args()
    import torch

    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as directory:
        names, threaded, alone = measure(args, Path(directory))
    added = np.median(threaded[:, 1:] - threaded[:, :1], axis=0)
    rows = [
        [name, milliseconds(float(added[i])), milliseconds(float(np.median(alone[:, i])))]
        for i, name in enumerate(names)
    ]
    values = sum(ROWS.values()) * len(CHOSEN)
    note = (
        f"{values:,} values a step ({', '.join(op for op in CHOSEN)} of {sum(ROWS.values()):,} tensors). Medians of "
        f"{args.rounds} rounds of {args.block} steps; a step of that training takes "
        f"{milliseconds(float(np.median(threaded[:, 0])))}."
    )
    figures = {f"{name}, of the step": of_the_step(threaded[:, [0, i + 1]]) for i, name in enumerate(names)}
    part = Part([note, table(["", "added to a step", "inline"], rows)], figures, spread(threaded[:, 0]))
    publish_parts("What each sink and rule costs", [part], args.output)


if __name__ == "__main__":
    main()
