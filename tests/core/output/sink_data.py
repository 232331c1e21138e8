"""Snapshots and contexts for the tests of sinks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from probe.core.output.sinks.context import SinkContext
from probe.core.records import Batch, Finding, Key, Snapshot


def context(root: Path, **fields: Any) -> SinkContext:
    return SinkContext(**{"directory": root / "run", "root": root, "rank": 0, **fields})


def batch(signal: str, step: int, columns: dict[str, list[float]], **fields: Any) -> Batch:
    """A batch of parameters ``p0``, ``p1``, ... of shape (3, 2), unless ``fields`` has others."""
    rows = len(next(iter(columns.values())))
    defaults = {
        "keys": tuple(Key(f"p{row}") for row in range(rows)),
        "shapes": ((3, 2),) * rows,
        "dtypes": ("torch.float32",) * rows,
        "order": np.arange(rows),
    }
    arrays = {name: np.array(column, dtype=np.float64) for name, column in columns.items()}
    return Batch(signal, step, columns=arrays, **{**defaults, **fields})


def snapshot(step: int, *batches: Batch, ops: tuple[str, ...] = ("min", "max"), **fields: Any) -> Snapshot:
    return Snapshot(step=step, rank=0, time=1000.0 + step, batches=batches, ops=ops, **fields)


def finding(step: int, name: str = "fc.weight", op: str = "norm", **fields: Any) -> Finding:
    defaults = {"rule": "AnomalyNan", "signal": "grad_reduced", "key": Key(name), "value": float("nan")}
    defaults |= {"expected": float("nan"), "rank": 0, "order": 7, "message": f"{name} {op} is bad at step {step}"}
    return Finding(**{"step": step, "op": op, **defaults, **fields})
