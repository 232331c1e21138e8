"""One small GPT, trained with the same weights and data on PyTorch and on MindSpore, gives the same tables."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from probe.demo.recipe import BYTES, Size, batches
from tests.required import require

torch = require("torch")
mindspore = require("mindspore")

from mindspore import ops  # noqa: E402
from mindspore.experimental import optim  # noqa: E402

import probe.mindspore  # noqa: E402
import probe.pytorch  # noqa: E402
from probe.demo.mindspore.training import Gpt as MindsporeGpt  # noqa: E402
from probe.demo.pytorch.training import Gpt as PytorchGpt  # noqa: E402

SIZE = Size(layers=2, width=32, heads=4, context=16)
SEED, STEPS, MICRO_BATCHES = 5, 3, 2
ADAM = {"lr": 1e-3, "betas": (1 - 2**-3, 1 - 2**-10), "eps": 1e-4, "weight_decay": 0.01}
"""Numbers that leave no room for rounding to be blown up: MindSpore computes ``1 - beta`` in float32, which is off by
1e-5 for a beta of 0.999, and the gradient of a key's bias is 0 but for rounding, which a small eps would turn to steps.
"""
EVERYTHING = {
    "wg_distribution": True,
    "monitor_mbs_grad": True,
    "param_distribution": True,
    "mv_distribution": True,
    "xy_distribution": True,
    "all_xy": True,
    "ops": ["norm", "min", "max", "mean", "nans", "infs"],
    "ndigits": 12,
    "squash_name": False,
}
STATE = {"exp_avg", "exp_avg_sq"}
SIGNALS = {"actv", "actv_grad", "grad_unreduced", "grad_reduced", "param_origin", "param_updated", *STATE}
OWN_NAMES = {"gamma": "weight", "beta": "bias", "embedding_table": "weight"}
"""Names of the parameters of norms and embeddings in MindSpore, with those in PyTorch."""
CLOSE = 1e-4


class Row(NamedTuple):
    """Which tensor a line is about."""

    signal: str
    step: int
    micro_step: int
    name: str
    call: int


class Numbers(NamedTuple):
    """Numbers of a line."""

    shape: tuple[int, ...]
    ops: dict[str, float]


Tables = dict[Row, Numbers]


class Run(NamedTuple):
    """Result of one training."""

    tables: Tables
    losses: list[float]


class Pair(NamedTuple):
    """The same training on both frameworks."""

    pytorch: Run
    mindspore: Run


def data() -> list[list[tuple[Any, Any]]]:
    """For each step its micro batches."""
    pieces = batches(STEPS * MICRO_BATCHES, SIZE.context, SEED)
    return [[next(pieces) for _ in range(MICRO_BATCHES)] for _ in range(STEPS)]


def train_on_pytorch() -> list[float]:
    """A loop as PyTorch's users write it; returns the losses."""
    model = PytorchGpt(SIZE, SEED)
    optimizer = torch.optim.AdamW(model.parameters(), **ADAM)
    losses = []
    with probe.pytorch.TrainerMon(EVERYTHING, params_have_main_grad=False) as monitor:
        monitor.set_monitor(model, MICRO_BATCHES, optimizer)
        for micro_batches in data():
            for tokens, targets in micro_batches:
                logits = model(torch.from_numpy(tokens)).flatten(0, 1)
                loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(targets).flatten())
                loss.backward()
                losses.append(loss.item())
            optimizer.step()
            optimizer.zero_grad()
    assert monitor.faults == {}
    return losses


def train_on_mindspore() -> list[float]:
    """The same, as MindSpore's users write it."""
    model = MindsporeGpt(SIZE, SEED)
    optimizer = optim.AdamW(model.trainable_params(), **ADAM)

    def loss_of(tokens: Any, targets: Any) -> Any:
        return ops.cross_entropy(model(tokens).reshape(-1, BYTES), targets.reshape(-1))

    loss_and_gradients = mindspore.value_and_grad(loss_of, None, optimizer.parameters)
    losses = []
    with probe.mindspore.TrainerMon(EVERYTHING) as monitor:
        monitor.set_monitor(model, MICRO_BATCHES, optimizer)
        for micro_batches in data():
            total = None
            for pair in micro_batches:
                loss, gradients = loss_and_gradients(*(mindspore.tensor(ids, mindspore.int32) for ids in pair))
                total = gradients if total is None else [a + b for a, b in zip(total, gradients, strict=True)]
                losses.append(float(loss))
            optimizer(tuple(total))
    assert monitor.faults == {}
    return losses


def tables(directory: Path) -> Tables:
    """Every line of every file in ``directory``, under PyTorch's names."""
    found: Tables = {}
    for signal, line in lines(directory):
        head, _, last = line["name"].rpartition(".")
        name = f"{head}.{OWN_NAMES.get(last, last)}"
        row = Row(signal, int(line["step"]), int(line.get("micro_step") or 0), name, int(line.get("call") or 0))
        assert row not in found, f"{row} twice"
        found[row] = Numbers(tuple(json.loads(line["shape"])), {op: float(line[op]) for op in EVERYTHING["ops"]})
    return found


def lines(directory: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Each line with its signal."""
    for path in sorted(directory.glob("*.csv")):
        with path.open(newline="", encoding="utf-8") as file:
            for line in csv.DictReader(file, strict=True):
                yield path.stem.rpartition("_")[0], line


@pytest.fixture(scope="module")
def pair(same_gpt: Path) -> Pair:
    """Both frameworks' runs, in one process."""
    runs = ((next((same_gpt / name).iterdir()), same_gpt / f"{name}.json") for name in ("pytorch", "mindspore"))
    return Pair(*(Run(tables(directory), json.loads(losses.read_text())) for directory, losses in runs))


def test_both_train_alike(pair: Pair) -> None:
    """The losses agree, and fall: what is compared below is one training run, and one that moves."""
    ours, theirs = pair.pytorch.losses, pair.mindspore.losses
    assert len(ours) == STEPS * MICRO_BATCHES
    assert theirs == pytest.approx(ours, rel=1e-5)
    assert ours[-1] < ours[0] - 0.1


def test_the_tables_have_the_same_rows(pair: Pair) -> None:
    """Every (signal, step, micro step, name, call) of one is in the other, with the same shape; every signal has some.

    But for the first step's optimizer state, which PyTorch makes in its first update and MindSpore before, of zeros.
    """
    ours, theirs = pair.pytorch.tables, pair.mindspore.tables
    missing, more = ours.keys() - theirs.keys(), theirs.keys() - ours.keys()
    assert missing == set()
    assert {(row.signal, row.step) for row in more} == {(signal, 0) for signal in STATE}
    assert {theirs[row].ops["norm"] for row in more} == {0.0}
    assert {row.signal for row in ours} == SIGNALS
    assert {row.micro_step for row in ours} == set(range(MICRO_BATCHES))
    assert {row: theirs[row].shape for row in ours} == {row: numbers.shape for row, numbers in ours.items()}


def test_the_numbers_agree(pair: Pair) -> None:
    """Norms to 1e-4 of themselves; minimum, maximum and mean to 1e-4 of the root mean square; counts exactly."""
    compared = [
        (row, op, numbers.ops[op], pair.mindspore.tables[row].ops[op], allowed)
        for row, numbers in pair.pytorch.tables.items()
        for op, allowed in tolerances(numbers).items()
    ]
    assert len(compared) > 1000
    assert [each for each in compared if not abs(each[2] - each[3]) <= each[4]] == []


def tolerances(numbers: Numbers) -> dict[str, float]:
    """By how much each op may differ."""
    norm = numbers.ops["norm"]
    rms = norm / math.sqrt(np.prod(numbers.shape))
    return {"norm": CLOSE * norm, **dict.fromkeys(("min", "max", "mean"), CLOSE * rms), "nans": 0.0, "infs": 0.0}
