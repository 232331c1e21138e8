"""Files of runs for the tests of what reads them: written by the sinks that write them in training."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from probe.core.output.sinks import SINKS
from probe.core.records import Key
from tests.core.output.sink_data import batch, context, snapshot

KEYS = (Key("fc", "input"), Key("fc", "output"))


def write_run(
    root: Path,
    rank: int,
    steps: Sequence[int],
    time: str = "Dec03_21-34-40",
    scale: float = 1.0,
    sink: str = "csv",
    **fields: Any,
) -> Path:
    """A rank's directory with activations (two micro batches) and reduced gradients, drawn by rank and step."""
    directory = root / f"{time}-rank{rank}-{rank:08x}"
    writer = SINKS[sink](context(root, directory=directory, rank=rank, **fields))
    writer.open()
    for step in steps:
        low, high = scale * np.random.default_rng((rank, step)).standard_normal((2, 4))
        keys = tuple(key._replace(micro_step=micro) for micro in (0, 1) for key in KEYS)
        activations = batch("actv", step, {"min": low, "max": high}, keys=keys, micro_stepped=True)
        gradients = batch("grad_reduced", step, {"min": low[:2], "max": high[:2]})
        writer.write(snapshot(step, activations, gradients))
    writer.close()
    return directory


Place = tuple[int, str, int, str, int, str]
"""Rank, kind, stage, name, micro step, op."""


def cells_of(directory: Path, rank: int) -> Iterator[tuple[Place, int, float]]:
    """Every number in a rank's CSV files, as Python's own reader parses it: its place, step and value."""
    for path in sorted(directory.glob("*.csv")):
        kind = path.name.rpartition("_")[0]
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                about = (rank, kind, int(row["vpp_stage"]), row["name"], int(row.get("micro_step", 0)))
                for op in ("min", "max"):
                    yield (*about, op), int(row["step"]), float(row[op])
