"""Directions, updates, features and structure under what shares parameters out: right rows of this rank's part."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.distributed.models import Net, batch, loss_of
from tests.distributed.ranks import Ranks
from tests.distributed.test_deepspeed import DTYPES, Case, engine_of
from tests.pytorch.watching import watch
from tests.required import require

torch = require("torch")

from torch.distributed.fsdp import fully_shard  # noqa: E402 - only where torch is

STEPS, LR, EPS = 3, 0.01, 1e-3
SETTINGS = {
    "xy_distribution": False,
    "wg_distribution": False,
    "param_distribution": False,
    "mv_distribution": False,
    "ur_distribution": True,
    "mg_direction": True,
    "recording_l2_features": True,
    "l2_targets": {"linear_hook": []},
}


class Seen(NamedTuple):
    """Rows of a signal on one rank: name and step to shape, coverage and numbers."""

    faults: dict[str, int]
    rows: dict[str, dict[tuple[str, int], dict[str, str]]]
    momenta: dict[tuple[str, int], tuple[Any, Any]]
    """By name and step, of the whole model trained by hand: gradient and first moment before the update."""
    updates: dict[tuple[str, int], tuple[Any, Any]]
    """Update and ratio."""


def by_hand() -> tuple[dict[Any, Any], dict[Any, Any]]:
    """Adam on both ranks' data in one process, in float64."""
    model = Net().double()
    first = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    second = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    momenta, updates = {}, {}
    for step in range(STEPS):
        loss = sum(loss_of(model(batch(step, 0, rank).double())) for rank in range(2)) / 2
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        for (name, parameter), gradient in zip(model.named_parameters(), gradients, strict=True):
            momenta[name, step] = gradient.numpy(), first[name].numpy().copy()
            first[name].mul_(0.9).add_(0.1 * gradient)
            second[name].mul_(0.999).add_(0.001 * gradient.square())
            m, v = first[name] / (1 - 0.9 ** (step + 1)), second[name] / (1 - 0.999 ** (step + 1))
            updates[name, step] = (m / (v.sqrt() + EPS)).numpy(), (m / v.sqrt()).numpy()
            with torch.no_grad():
                parameter.mul_(1 - LR * 0.01).sub_(LR * m / (v.sqrt() + EPS))
    return momenta, updates


def written(directory: str | None) -> dict[str, dict[tuple[str, int], dict[str, str]]]:
    rows: dict[str, dict[tuple[str, int], dict[str, str]]] = {}
    for path in sorted(Path(directory or "").glob("*_*-*.csv")):
        with path.open(newline="", encoding="utf-8") as file:
            for line in csv.DictReader(file):
                rows.setdefault(path.stem.rpartition("_")[0], {})[line["name"], int(line["step"])] = line
    return rows


def seen(model: Any, optimizer: Any, train: Callable[[int], None]) -> Seen:
    monitor = watch(model, optimizer, **SETTINGS)
    for step in range(STEPS):
        train(step)
    monitor.stop()
    return Seen(monitor.faults, written(monitor.output_directory), *by_hand())


def fsdp2() -> tuple[Any, Any, Callable[[int], None]]:
    model = Net()
    for part in (model.norm, model):
        fully_shard(part)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, eps=EPS, foreach=False)

    def train(step: int) -> None:
        loss_of(model(batch(step, 0))).backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, optimizer, train


def zero(case: Case) -> tuple[Any, Any, Callable[[int], None]]:
    engine = engine_of(case)

    def train(step: int) -> None:
        engine.backward(loss_of(engine(batch(step, 0).to(DTYPES[case.precision]))))
        engine.step()

    return engine, engine.optimizer, train


def seen_of_fsdp2() -> Seen:
    return seen(*fsdp2())


def seen_of_zero(case: Case) -> Seen:
    return seen(*zero(case))


def structure_of_fsdp2() -> tuple[str, dict[str, Any]]:
    return structure(*fsdp2())


def structure_of_zero(case: Case) -> tuple[str, dict[str, Any]]:
    return structure(*zero(case))


def structure(model: Any, optimizer: Any, train: Callable[[int], None]) -> tuple[str, dict[str, Any]]:
    """How training ended, and the file."""
    monitor = watch(model, optimizer, print_struct=True)
    ended = ""
    try:
        for step in range(STEPS):
            train(step)
    except SystemExit as stopped:
        ended = type(stopped).__name__
    monitor.stop()
    assert monitor.faults == {}
    rank = torch.distributed.get_rank()
    path = Path(os.environ["MONITOR_OUTPUT_DIR"]) / "module_struct" / f"rank{rank}" / "module_struct.json"
    return ended, json.loads(path.read_text())


# What must have come of it.


def check(ranks: list[Seen], relative: float) -> None:
    """Elements are counted over both ranks: each is on exactly one, and their numbers are the whole tensor's."""
    for each in ranks:
        assert each.faults == {}
        assert {name for name, _ in each.rows["linear_hook"]} == {"up.linear", "down.linear"}
    first = ranks[0]
    for (name, step), (update, ratio) in first.updates.items():
        for signal, vector in (("update", update), ("ratio", ratio)):
            rows = [each.rows[signal][name, step] for each in ranks if (name, step) in each.rows[signal]]
            sizes = [int(np.prod(json.loads(row["shape"]))) for row in rows]
            assert sum(sizes) == vector.size
            norm = np.sqrt(sum(float(row["norm"]) ** 2 for row in rows))
            assert norm == pytest.approx(np.linalg.norm(vector), rel=relative), (signal, name, step)
    for (name, step), (gradient, moment) in first.momenta.items():
        parts = [
            (float(each.rows["mg_direction"][name, step]["norm"]), int(np.prod(json.loads(about["shape"]))))
            for each in ranks
            if (about := each.rows["update"].get((name, step))) and (name, step) in each.rows["mg_direction"]
        ]
        if step == 0 and not parts:
            continue  # some keep no state before the first update
        assert sum(size for _, size in parts) == gradient.size, (name, step)
        agreeing = sum(fraction * size for fraction, size in parts)
        expected = float((np.sign(gradient) * np.sign(moment)).sum() / 2 + gradient.size / 2)
        assert agreeing == pytest.approx(expected, abs=0.01 if relative < 1e-3 else 1.01), (name, step)


def test_fsdp2(two_ranks: Ranks) -> None:
    """Parts of DTensors make up the whole tensor's numbers."""
    check(two_ranks.run(seen_of_fsdp2), 1e-4)


CASES = {
    "stage 1": Case(1),
    "stage 2": Case(2),
    "stage 3": Case(3),
    "BF16_Optimizer": Case(1, "bf16", accumulates_in="fp32"),
}


@pytest.mark.parametrize("case", CASES)
def test_zero(deepspeed_ranks: Callable[[str], Ranks], case: str) -> None:
    """Stretches of flattened parameters do, too, where the rank holds the whole gradient as well."""
    check(deepspeed_ranks("0.19.8").run(seen_of_zero, CASES[case]), 1e-4 if "BF16" not in case else 3e-2)


def test_structures(two_ranks: Ranks, deepspeed_ranks: Callable[[str], Ranks]) -> None:
    """Every rank writes the user's modules, and stops."""
    found = two_ranks.run(structure_of_fsdp2) + deepspeed_ranks("0.19.8").run(structure_of_zero, Case(3))
    for ended, modules in found:
        assert ended == "TrainingStopped"
        assert set(modules) == {"0:", "0:up", "0:norm", "0:down"}
        assert modules["0:up"]["output_grad"]["0"] == "size=(4, 5), dtype=torch.float32"


def seen_of_megatron(distributed: bool) -> tuple[dict[str, int], dict[str, Any]]:
    """Faults and this rank's rows."""
    from tests.distributed.megatron_tiny import build, step

    models, optimizer = build(distributed=distributed)
    monitor = watch(models, optimizer, **SETTINGS)
    for number in range(2):
        step(models, optimizer, number)
    monitor.stop()
    return monitor.faults, written(monitor.output_directory)


@pytest.mark.parametrize("distributed", [False, True])
def test_megatron(megatron_ranks: Callable[..., Ranks], distributed: bool) -> None:
    """With a DistributedOptimizer each rank has rows of its part; both together are what one rank has without."""
    ranks = megatron_ranks("0.16.1")
    found = ranks.run(seen_of_megatron, distributed)
    whole = ranks.run(seen_of_megatron, False)[0][1]
    for faults, rows in found:
        assert faults == {}
        assert ("linear.linear", 1) in rows["linear_hook"]
    for signal in ("update", "ratio"):
        for name in ("linear.weight", "linear.bias"):
            parts = [rows[signal][name, 1] for _, rows in found if (name, 1) in rows[signal]]
            parts = parts if distributed else parts[:1]
            norm = np.sqrt(sum(float(part["norm"]) ** 2 for part in parts))
            assert norm == pytest.approx(float(whole[signal][name, 1]["norm"]), rel=1e-5)
    agreeing = {
        name: sum(
            float(rows["mg_direction"][name, 1]["norm"]) * int(np.prod(json.loads(rows["update"][name, 1]["shape"])))
            for _, rows in (found if distributed else found[:1])
            if (name, 1) in rows["mg_direction"]
        )
        for name in ("linear.weight", "linear.bias")
    }
    assert agreeing == {
        name: pytest.approx(float(whole["mg_direction"][name, 1]["norm"]) * size)
        for name, size in (("linear.weight", 12), ("linear.bias", 3))
    }
