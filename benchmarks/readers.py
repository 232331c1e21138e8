"""Check that the existing tool's readers understand our files: every value must come back as it was written.

``csv2tensorboard_by_step`` and ``msprobe data2db`` are run on the output of a tiny net and of a small GPT, both with
micro batches. Exit code 1 if a value is missing, different or made up.
"""

from __future__ import annotations

import argparse
import csv
import math
import multiprocessing
import re
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from _gpt import Training
from _monitors import EXISTING_TOOL, configuration, has_existing_tool
from _report import arguments, publish, table

OPS = ("min", "max", "norm", "mean", "zeros", "nans")
KNOWN = ("actv", "actv_grad", "exp_avg", "exp_avg_sq")
KNOWN += ("grad_unreduced", "grad_reduced", "param_origin", "param_updated")
"""Signals that the readers know; they ignore other kinds of optimizer state."""
MICRO_BATCHES, STEPS = 2, 3
LARGEST = 1e9
"""Magnitude at which ``data2db`` cuts larger ones off; it writes infinities as one more."""

WRITTEN_DIGITS = 2e-7
"""Relative difference smaller than half a unit of the last of six digits, and larger than float32's rounding."""


class Place(NamedTuple):
    """Place of a value."""

    kind: str
    stage: int
    name: str
    step: int
    micro_step: int
    op: str


Values = dict[Place, float]


# Values as written.


class TinyNet(torch.nn.Module):
    """Net of two linear layers with known weights, whose statistics can be computed by hand."""

    def __init__(self, calls: int = 1) -> None:
        super().__init__()
        self.fc, self.relu, self.fc2 = torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1, bias=False)
        self._calls = calls
        with torch.no_grad():
            self.fc.weight.copy_(torch.tensor([[1.0, 2], [3, 4], [-1, -2]]))
            self.fc.bias.copy_(torch.tensor([0.5, -0.5, 0]))
            self.fc2.weight.copy_(torch.tensor([[1.0, -1, 2]]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.fc(x)
        for _ in range(self._calls):
            x = self.relu(x)
        return self.fc2(x)  # type: ignore[no-any-return]


class TinyTraining:
    """Training of the tiny net."""

    def __init__(self, optimizer: Callable[..., torch.optim.Optimizer], calls: int = 1) -> None:
        self.model = TinyNet(calls)
        self.optimizer = optimizer(self.model.parameters(), lr=0.1)

    def step(self) -> None:
        for number in range(MICRO_BATCHES):
            self.model(torch.tensor([[1.0, 1], [0, -1]]) * (number + 1)).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


class Poisoned(TinyTraining):
    """Training that ends in infinities and NaN."""

    def step(self) -> None:
        super().step()
        with torch.no_grad():
            self.model.fc2.weight.mul_(1e30)


def momentum(parameters: Any, lr: float) -> torch.optim.Optimizer:
    """Optimizer with a kind of state that the readers do not know."""
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9)


RUNS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "TinyNet, Adam": (lambda: TinyTraining(torch.optim.Adam), {}),
    "TinyNet, a gradient a micro batch": (lambda: TinyTraining(torch.optim.Adam), {"monitor_mbs_grad": True}),
    "TinyNet, three steps a file": (lambda: TinyTraining(torch.optim.Adam), {"step_count_per_record": 3}),
    "TinyNet, a module called twice": (lambda: TinyTraining(torch.optim.Adam, calls=2), {}),
    "TinyNet, SGD with momentum": (lambda: TinyTraining(momentum), {}),
    "TinyNet, NaN and infinity": (lambda: Poisoned(torch.optim.Adam), {}),
    "TinyNet, fixed decimals": (lambda: TinyTraining(torch.optim.Adam), {"ndigits": 6}),
    "GPT of 2 layers": (lambda: Training(micro_batches=MICRO_BATCHES, layers=2, width=64, tokens=32), {}),
}


def write(run: str, root: Path) -> Path:
    """Run one training with probe; return its output directory."""
    from _monitors import attach_probe

    make, more = RUNS[run]
    training = make()
    config = configuration("everything", **more) | {"ops": list(OPS)}
    monitor = attach_probe(training, config, root, micro_batches=MICRO_BATCHES)
    for _ in range(STEPS):
        training.step()
    monitor.stop()
    if monitor.faults:
        sys.exit(f"{run}: probe failed inside: {monitor.faults}")
    return Path(monitor.output_directory)


def written(directory: Path) -> Values:
    """Values of the signals that the readers know, from the text of our files."""
    values: Values = {}
    for path in sorted(directory.glob("*.csv")):
        found = re.fullmatch(r"(\w+)_\d+-\d+\.csv", path.name)
        if found is None or found.group(1) not in KNOWN:
            continue
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                where = (
                    found.group(1),
                    int(row["vpp_stage"]),
                    row["name"],
                    int(row["step"]),
                    int(row.get("micro_step", 0)),
                )
                for op in OPS:
                    values[Place(*where, op)] = float(row[op])
    return values


# Values as read.


def through_tensorboard(root: Path, micro_stepped: set[str]) -> Values:
    """Values that ``csv2tensorboard_by_step`` makes of ``root``."""
    from msprobe.pytorch.monitor.csv2tb import csv2tensorboard_by_step

    target = root / "tensorboard"
    converter = multiprocessing.get_context("spawn").Process(
        target=csv2tensorboard_by_step, args=(str(root),), kwargs={"output_dirpath": str(target)}
    )
    converter.start()
    converter.join()
    return dict(_events(target, micro_stepped))


def _events(target: Path, micro_stepped: set[str]) -> Iterator[tuple[Place, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for directory in sorted(target.glob("rank*/*")):
        events = EventAccumulator(str(directory), size_guidance={"scalars": 0}).Reload()
        for tag in events.Tags()["scalars"]:
            pattern = r"vp(\d+):(.*?)(?::micro(\d+))?/(\w+)"
            stage, name, micro, op = re.fullmatch(pattern, tag).groups()  # type: ignore[union-attr]
            assert (micro is not None) == (directory.name in micro_stepped), f"{directory.name}: {tag}"
            for event in events.Scalars(tag):
                yield Place(directory.name, int(stage), name, event.step, int(micro or 0), op), event.value


def through_database(root: Path) -> Values:
    """Values that ``msprobe data2db`` makes of ``root``."""
    target = root / "database"
    target.mkdir()
    command = [str(Path(sys.executable).with_name("msprobe")), "data2db", "--db", str(target), "--data", str(root)]
    command += ["--format", "monitor", "--micro_step", "false"]
    ran = subprocess.run(command, check=False, capture_output=True, text=True)
    files = list(target.glob("*.db"))
    if ran.returncode or not files:
        print(f"data2db ended with {ran.returncode}: {ran.stdout[-1500:]}{ran.stderr[-1500:]}")
        return {}
    query = f"""
        SELECT m.metric_name, t.vpp_stage, t.target_name, d.step, t.micro_step, {", ".join(f'd."{op}"' for op in OPS)}
        FROM trend_data d JOIN monitoring_targets t USING (target_id) JOIN monitoring_metrics m USING (metric_id)"""
    with sqlite3.connect(files[0]) as database:
        rows = database.execute(query).fetchall()
    return {
        Place(*row[:5], op): math.nan if value is None else value
        for row in rows
        for op, value in zip(OPS, row[5:], strict=True)
    }


# Comparison of both.


def in_float32(value: float) -> float:
    """Value as an event file holds it."""
    with np.errstate(over="ignore"):
        return float(np.float32(value))


def in_database(value: float) -> float:
    """Value as ``data2db`` keeps it."""
    if math.isnan(value):
        return value
    return math.copysign(LARGEST + 1, value) if math.isinf(value) else max(-LARGEST, min(LARGEST, value))


def problems(expected: Values, read: Values, kept: Callable[[float], float]) -> list[str]:
    """Lines about values that are missing, different or made up."""
    missing = [f"missing: {place}" for place in expected if place not in read]
    extra = [f"made up: {place}" for place in read if place not in expected]
    different = [
        f"different: {place}: wrote {value}, read {read[place]}"
        for place, value in expected.items()
        if place in read and not same(kept(value), read[place])
    ]
    return missing + extra + different


def same(one: float, other: float) -> bool:
    """Return whether two values are equal in all written digits, or both NaN; the readers' parser is not exact to the
    last bit."""
    return math.isclose(one, other, rel_tol=WRITTEN_DIGITS) or (math.isnan(one) and math.isnan(other))


def check(run: str) -> tuple[list[str], list[str]]:
    """Line of the table, and the problems."""
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        expected = written(write(run, root))
        micro_stepped = {"actv", "actv_grad", *["grad_unreduced"] * ("monitor_mbs_grad" in RUNS[run][1])}
        found = {
            "csv2tb": problems(expected, through_tensorboard(root, micro_stepped), in_float32),
            "data2db": problems(expected, through_database(root), in_database),
        }
    verdicts = ["all equal" if not wrong else f"{len(wrong)} WRONG" for wrong in found.values()]
    wrong = [f"{run}, {reader}: {line}" for reader, lines in found.items() for line in lines[:5]]
    return [run, f"{len(expected):,}", *verdicts], wrong


def main() -> int:
    parser: argparse.ArgumentParser = arguments(__doc__, rounds=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if not has_existing_tool():
        print(f"{EXISTING_TOOL} is not installed here: nothing to read with. `make bench` installs it.")
        return 0
    checked = [check(run) for run in RUNS]
    header = ["written by probe", "values", "`csv2tensorboard_by_step`", "`msprobe data2db`"]
    publish(f"Read by {EXISTING_TOOL}", [table(header, [row for row, _ in checked])], args.output)
    wrong = [line for _, lines in checked for line in lines]
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
