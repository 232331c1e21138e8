"""Attaching a monitor to a toy of any framework, and reading back what it wrote."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from probe.core.monitor.trainer_mon import Monitor
from tests.matrix.by_hand import numbers
from tests.matrix.harness import Harness, Tensor, train_step
from tests.matrix.models import X, tiny_net
from tests.tables import EVERY_SIGNAL, Row, Rows, read

OPS = ["min", "max", "mean", "norm", "zeros", "nans", "infs", "std"]
EVERYTHING: dict[str, Any] = {
    **EVERY_SIGNAL,
    "ops": OPS,
    "ndigits": 20,
    "squash_name": False,
}
"""Everything on, numbers in full."""
GRADIENTS = {"wg_distribution": True, "ops": OPS, "ndigits": 20, "squash_name": False}
ACTIVATIONS = {"xy_distribution": True, "ops": OPS, "ndigits": 20, "squash_name": False}
LR, MOMENTUM = 0.25, 0.5


@contextmanager
def watching(framework: Harness, config: Any, model: Any, optimizer: Any, **more: Any) -> Iterator[Monitor]:
    """A monitor on ``model``; when it has ended, nothing has gone wrong inside it."""
    with framework.TrainerMon(config) as monitor:
        monitor.set_monitor(model, 1, optimizer, **more)
        yield monitor
    assert monitor.faults == {}


def train_tiny(
    framework: Harness, config: Any, micro_batches: Iterable[int] = (1,), **more: Any
) -> tuple[Monitor, Rows]:
    """TinyNet under momentum; ``micro_batches`` says how many each step has."""
    model = tiny_net(framework)
    optimizer = framework.optimizer("momentum", model, lr=LR, momentum=MOMENTUM)
    loop = framework.loop(model, optimizer)
    with watching(framework, config, model, optimizer, **more) as monitor:
        for count in micro_batches:
            train_step(loop, *inputs(framework, count))
    return monitor, rows_of(monitor)


def train(framework: Harness, config: Mapping[str, Any], model: Any, steps: int = 1) -> Rows:
    """The rows of a training on the sum of the outputs, one micro batch a step, under momentum."""
    optimizer = framework.optimizer("momentum", model, lr=LR, momentum=MOMENTUM)
    loop = framework.loop(model, optimizer)
    with watching(framework, config, model, optimizer) as monitor:
        for _ in range(steps):
            train_step(loop, framework.tensor(X))
    return rows_of(monitor)


def inputs(framework: Harness, micro_batches: int = 1) -> list[Tensor]:
    """TinyNet's input for each micro batch of a step."""
    return [framework.tensor(X * (number + 1)) for number in range(micro_batches)]


def rows_of(monitor: Monitor) -> Rows:
    """Everything that a monitor which has ended wrote in tables; nothing if it wrote none."""
    return read(monitor.output_directory) if monitor.output_directory else {}


def lines_of(monitor: Monitor) -> dict[str, list[dict[str, str]]]:
    """The cells of each table, by its file's name without ending."""
    tables = {}
    for path in sorted(Path(str(monitor.output_directory)).glob("*.csv")):
        with path.open(newline="", encoding="utf-8") as file:
            tables[path.stem] = list(csv.DictReader(file, strict=True))
    return tables


def names_of(rows: Iterable[Row], signal: str) -> set[str]:
    """What the rows of one signal are about."""
    return {row.name for row in rows if row.signal == signal}


def only(rows: Mapping[Row, Any], *signals: str) -> dict[Row, Any]:
    """The rows of some signals."""
    return {row: value for row, value in rows.items() if row.signal in signals}


def assert_rows(rows: Rows, expected: Mapping[Row, Any], *signals: str) -> None:
    """Of ``signals`` (all if none) there are exactly the expected rows, with the numbers of the expected arrays."""
    found, wanted = (only(rows, *signals), only(expected, *signals)) if signals else (rows, dict(expected))
    missing, more = sorted(wanted.keys() - found.keys()), sorted(found.keys() - wanted.keys())
    assert (missing, more) == ([], []), f"missing {missing[:6]}, too many {more[:6]}"
    assert wanted, "nothing is expected: this would prove nothing"
    for row, array in wanted.items():
        assert_numbers(found[row], numbers(array), math.sqrt(array.size), row)


def assert_numbers(got: Mapping[str, float], want: Mapping[str, float], root: float, what: object) -> None:
    """Counts exact; extremes and norm to six digits, std to five, mean to 1e-5 of the RMS; ``root`` is that of the
    count."""
    rms = want["norm"] / root
    for op, value in got.items():
        if not math.isfinite(want[op]):
            assert str(value) == str(want[op]), f"{what} {op}: {value}, expected {want[op]}"
            continue
        scale = {"mean": rms, "std": want["std"] + 1e-2 * rms}.get(op, abs(want[op]))
        allowed = 0.0 if op in ("zeros", "nans", "infs") else 1e-5 * scale
        assert abs(value - want[op]) <= allowed, f"{what} {op}: {value}, expected {want[op]}"
