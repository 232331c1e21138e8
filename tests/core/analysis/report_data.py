"""Runs of several ranks, as the CSV sink writes them, for the tests of the report."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from probe.core.output.sinks.context import SinkContext
from probe.core.output.sinks.csv import CsvSink
from probe.core.records import Batch, Key, Snapshot
from probe.core.storage.run_directory import write_manifest

OPS = ("min", "max", "norm")
Value = Callable[[int, int, int, int], float]
"""Of step, rank, micro step and row the largest element; the smallest is half of it, the norm twice."""


def varied(step: int, rank: int, micro_step: int, row: int) -> float:
    """Another number everywhere, over several decades, of both signs."""
    size = 10.0 ** (np.sin(step * 0.37 + row) * 3) * (1 + 0.01 * rank + 0.001 * micro_step)
    return float(-size if (step + row) % 5 == 0 else size)


def write_run(
    root: Path,
    ranks: int = 2,
    steps: Sequence[int] = range(6),
    names: Sequence[str] = ("fc1.weight", "fc1.bias", "fc2.weight"),
    value: Value = varied,
    micro_steps: int = 2,
    steps_per_file: int = 2,
    stages: int = 1,
    **manifest: Any,
) -> list[Path]:
    """The directories of ``ranks`` ranks with ``grad_reduced`` of ``names`` and ``actv`` of their modules' outputs."""
    directories = []
    for rank in range(ranks):
        directory = root / f"Dec03_21-34-4{rank % 10}-rank{rank}-{rank:08x}"
        stage = rank * stages // ranks
        sink = CsvSink(SinkContext(directory, root, rank, steps_per_file=steps_per_file, pp_stage=stage))
        sink.open()
        for step in steps:
            sink.write(_snapshot(step, rank, names, value, micro_steps))
        fields = {"rank": rank, "world_size": ranks, "pp_stage": stage, "framework": "pytorch", "config": {"eps": 1e-8}}
        write_manifest(directory, {**fields, **manifest})
        directories.append(directory)
    return directories


def _snapshot(step: int, rank: int, names: Sequence[str], value: Value, micro_steps: int) -> Snapshot:
    modules = list(dict.fromkeys(name.rpartition(".")[0] for name in names))
    activations = [Key(m, "output", micro) for micro in range(micro_steps) for m in modules]
    numbers = [value(step, rank, key.micro_step, modules.index(key.name)) for key in activations]
    parameters = [Key(name) for name in names]
    gradients = [value(step, rank, 0, row) for row in range(len(names))]
    batches = [_batch("actv", step, activations, numbers, True), _batch("grad_reduced", step, parameters, gradients)]
    return Snapshot(step=step, rank=rank, time=0.0, batches=batches, ops=OPS)


def _batch(signal: str, step: int, keys: list[Key], numbers: list[float], micro_stepped: bool = False) -> Batch:
    largest = np.array(numbers)
    with np.errstate(over="ignore"):
        columns = {"min": largest / 2, "max": largest, "sumsq": (2 * largest) ** 2}
    shapes, dtypes = ((2, 2),) * len(keys), ("torch.float32",) * len(keys)
    return Batch(signal, step, tuple(keys), shapes, dtypes, np.arange(len(keys)), columns, micro_stepped)


def written_rows(directories: Sequence[Path], signal: str) -> Iterator[dict[str, str]]:
    """Every row of a signal as text, by Python's own reader; with the number of its directory."""
    for n, directory in enumerate(directories):
        for path in sorted(directory.glob(f"{signal}_[0-9]*.csv")):
            with path.open(newline="") as file:
                for row in csv.DictReader(file):
                    yield {**row, "directory": str(n), "file": path.name}


def written_loss(directory: Path, losses: Sequence[float]) -> None:
    """Write the loss of the steps from 0 on into the directory of a rank."""
    lines = (f"0,loss,{step},{loss!r},[],float64\n" for step, loss in enumerate(losses))
    text = "vpp_stage,name,step,value,shape,dtype\n" + "".join(lines)
    (directory / f"run_0-{len(losses) - 1}.csv").write_text(text, encoding="utf-8")
