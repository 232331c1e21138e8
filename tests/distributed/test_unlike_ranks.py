"""Ranks that are configured otherwise, or have no monitor, in each way of sharing a model out.

Training goes on as it does without the monitor, and what the others wrote can be read.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest

from probe.core.monitor.attachment import _runs
from tests.distributed.models import Net, batch, loss_of
from tests.distributed.ranks import Ranks
from tests.pytorch.watching import watch
from tests.required import require

torch = require("torch")

import torch.distributed as dist  # noqa: E402 - only where torch is

STEPS = 4
LR = 0.1


class Training(NamedTuple):
    """One way to train."""

    model: Any
    optimizer: Any
    step: Callable[[int], float]
    """Takes the number of a step; the loss, or another number that the parameters follow from."""


def _plain(model: Any) -> Training:
    optimizer = torch.optim.Adam(model.parameters(), LR)

    def step(number: int) -> float:
        loss = loss_of(model(batch(number, 0)))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    return Training(model, optimizer, step)


def fsdp1() -> Training:
    """FullyShardedDataParallel."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    return _plain(FullyShardedDataParallel(Net(), use_orig_params=True, device_id=torch.device("cpu")))


def fsdp2() -> Training:
    """``fully_shard``."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = Net()
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    return _plain(model)


def zero3() -> Training:
    """DeepSpeed, stage 3."""
    from tests.distributed import test_deepspeed as deepspeed

    engine = deepspeed.engine_of(deepspeed.Case(3))

    def step(number: int) -> float:
        loss = loss_of(engine(batch(number, 0)))
        engine.backward(loss)
        engine.step()
        return float(loss.detach())

    return Training(engine, engine.optimizer, step)


def megatron() -> Training:
    """Megatron-Core with its distributed optimizer."""
    from tests.distributed import megatron_tiny

    models, optimizer = megatron_tiny.build(distributed=True)

    def step(number: int) -> float:
        (total,), _ = megatron_tiny.step(models, optimizer, number)
        return float(total.abs().sum())

    return Training(models, optimizer, step)


WAYS = {"fsdp1": fsdp1, "fsdp2": fsdp2, "zero3": zero3, "megatron": megatron}
SETTINGS = {"global_stats": True, "global_stats_seconds": 0.5, "xy_distribution": False}
OTHERWISE = {"global_stats": False, "ops": ["max"], "mv_distribution": False, "step_interval": 2, "start_step": 1}


class Outcome(NamedTuple):
    """How training went on one rank."""

    numbers: list[float]
    faults: dict[str, int]
    steps: list[int]
    """Those that the monitor wrote, of which every file can be read."""


def trained(way: str, unlike: str) -> Outcome:
    """Rank 1 is ``otherwise`` configured, or ``alone``: without a monitor; with ``plain`` no rank has one."""
    training, other, monitor = WAYS[way](), dist.get_rank() == 1, None
    if unlike == "alone" and other:
        next(_runs)  # they are counted alike on all ranks, for what comes after
    elif unlike != "plain":
        settings = SETTINGS | (OTHERWISE if unlike == "otherwise" and other else {})
        monitor = watch(training.model, training.optimizer, **settings)
    numbers = [training.step(number) for number in range(STEPS)]
    if monitor is None:
        return Outcome(numbers, {}, [])
    monitor.stop()
    return Outcome(numbers, monitor.faults, readable(Path(monitor.output_directory)))


def readable(directory: Path) -> list[int]:
    """The steps in files of which every row is whole."""
    steps = set()
    assert json.loads((directory / "manifest.json").read_text(encoding="utf-8"))["end_time"]
    for path in directory.glob("*.csv"):
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file, strict=True):
                assert None not in row
                assert None not in row.values()
                steps.add(int(row["step"]))
    return sorted(steps)


@pytest.mark.parametrize("way", WAYS)
def test_training_is_what_it_is_without_the_monitor_whatever_another_rank_has(
    request: pytest.FixtureRequest, way: str
) -> None:
    """The other rank's monitor collects other things in other steps, or there is none: the same numbers to the last
    bit, all steps in the files, and who did not come to the exchange is counted."""
    plain = ranks_for(request, way).run(trained, way, "plain")
    for unlike, others_steps in (("otherwise", [1, 3]), ("alone", [])):
        one, other = ranks_for(request, way).run(trained, way, unlike)
        assert [one.numbers, other.numbers] == [each.numbers for each in plain]
        assert one.steps == [*range(STEPS)]
        assert one.faults == {"global statistics: TimeoutError": 1}
        assert other[1:] == ({}, others_steps)


def ranks_for(request: pytest.FixtureRequest, way: str) -> Ranks:
    """Two processes with what ``way`` needs."""
    if way == "zero3":
        return cast("Ranks", request.getfixturevalue("deepspeed_ranks")("0.19.8"))
    if way == "megatron":
        return cast("Ranks", request.getfixturevalue("megatron_ranks")("0.16.1"))
    return cast("Ranks", request.getfixturevalue("two_ranks"))
