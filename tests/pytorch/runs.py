"""Training a toy under a monitor and reading what that has written."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from probe.pytorch import TrainerMon
from tests.pytorch.toys import TinyNet, X
from tests.required import require

torch = require("torch")

Row = dict[str, str]


@contextmanager
def watching(config: Any, model: Any, optimizer: Any, micro_batches: int = 1, **more: Any) -> Iterator[TrainerMon]:
    """A monitor on ``model``; when it has ended, nothing has gone wrong inside it."""
    with TrainerMon(config) as monitor:
        monitor.set_monitor(model, micro_batches, optimizer, **more)
        yield monitor
    assert monitor.faults == {}


def one_step(model: Any, optimizer: Any, micro_batches: int = 1, inputs: Callable[[], Any] = lambda: X) -> None:
    """One training step with the sum of the outputs as loss."""
    for number in range(micro_batches):
        model(inputs() * (number + 1)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def train_tiny(config: Mapping[str, Any], steps: int = 1, micro_batches: int = 1, **more: Any) -> TrainerMon:
    """TinyNet and SGD under a monitor, which is returned when it has ended."""
    model = TinyNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching(config, model, optimizer, micro_batches, **more) as monitor:
        for _ in range(steps):
            one_step(model, optimizer, micro_batches)
    return monitor


def directory_of(root: Path) -> Path:
    """The one output directory under ``root``."""
    (found,) = (path for path in root.iterdir() if "-rank" in path.name)
    return found


def tables(root: Path) -> dict[str, list[Row]]:
    """Every CSV file in the one output directory, by its name without ending."""
    return {path.stem: table(path) for path in sorted(directory_of(root).glob("*.csv"))}


def table(path: Path) -> list[Row]:
    """The rows of one CSV file."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file, strict=True))


def header(path: Path) -> list[str]:
    """The columns of one CSV file."""
    with path.open(newline="", encoding="utf-8") as file:
        return next(csv.reader(file))


def manifest(root: Path) -> dict[str, Any]:
    """The manifest of the one output directory."""
    fields: dict[str, Any] = json.loads((directory_of(root) / "manifest.json").read_text(encoding="utf-8"))
    return fields


def names(rows: list[Row]) -> list[str]:
    """Names of the rows, in their order."""
    return [row["name"] for row in rows]
