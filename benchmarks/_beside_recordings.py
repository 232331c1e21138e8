"""Losses and norms of gradients of the cases from the recordings that ``finding.py --mode full --keep`` has left."""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

Numbers = dict[str, list[float]]
"""Series of a rank by name: ``losses`` and ``norms``, a number a step, NaN where none was recorded."""
GRADIENTS = "grad_reduced", "grad_unreduced"


def numbers_of(run: Path) -> list[Numbers]:
    """Return the series of each rank of a run.

    Args:
        run: folder of the run, with the output directory of the monitor in ``files``.
    """
    return [_of_rank(folder) for folder in sorted((run / "files").glob("*-rank*")) if folder.is_dir()]


def _of_rank(folder: Path) -> Numbers:
    logged: dict[str, dict[int, float]] = defaultdict(dict)
    for row in _rows(folder, "run"):
        if row["name"] in ("loss", "grad_norm"):
            logged[row["name"]][int(row["step"])] = float(row["value"] or "nan")
    norms = logged["grad_norm"] or next(filter(None, (_norms(folder, name) for name in GRADIENTS)), {})
    steps = range(max([*logged["loss"], *norms], default=-1) + 1)
    return {
        "losses": [logged["loss"].get(step, math.nan) for step in steps],
        "norms": [norms.get(step, math.nan) for step in steps],
    }


def _norms(folder: Path, signal: str) -> dict[int, float]:
    """Return the norm of all gradients at each step, from those of the parameters."""
    squares: dict[int, float] = defaultdict(float)
    for row in _rows(folder, signal):
        squares[int(row["step"])] += float(row["norm"] or "nan") ** 2
    return {step: square**0.5 for step, square in squares.items()}


def _rows(folder: Path, signal: str) -> Iterator[dict[str, str]]:
    for file in sorted(folder.glob(f"{signal}_[0-9]*.csv")):
        with file.open(encoding="utf-8", newline="") as lines:
            yield from csv.DictReader(lines)
