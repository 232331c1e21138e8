"""Reading back what a monitor wrote."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import NamedTuple

OPS = ["min", "max", "mean", "norm", "nans", "infs"]
EVERY_SIGNAL = dict.fromkeys(
    ("wg_distribution", "xy_distribution", "param_distribution", "mv_distribution", "all_xy"), True
)
"""Settings that collect everything there is."""


class Row(NamedTuple):
    """Which tensor a row of a file is about."""

    signal: str
    step: int
    name: str
    micro_step: int = 0
    call: int = 0
    stage: int = 0


Rows = dict[Row, dict[str, float]]


def read(directory: str | Path | None) -> Rows:
    """Every row of every table of numbers in ``directory``."""
    assert directory is not None
    rows: Rows = {}
    for path in sorted(Path(directory).glob("*_*-*.csv")):
        signal = path.stem.rpartition("_")[0]
        with path.open(newline="", encoding="utf-8") as file:
            for line in csv.DictReader(file):
                row = Row(signal, *_key(line))
                assert row not in rows, f"{row} twice"
                rows[row] = {op: float(line[op]) for op in line if op in (*OPS, "zeros", "std")}
    return rows


def _key(line: dict[str, str]) -> tuple[int, str, int, int, int]:
    counts = (int(line.get(count) or 0) for count in ("micro_step", "call", "vpp_stage"))
    name = line["name"].removesuffix(f".call{line.get('call')}")
    return int(line["step"]), name, *counts  # type: ignore[return-value]
