"""Functions of the adapter that only several processes call, each made to fail on one of them."""

from __future__ import annotations

import fcntl
import json
import logging
import os
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from probe.core.sentinel.board import BOARD, LOCK
from tests.distributed.models import Net, batch, loss_of
from tests.distributed.ranks import Ranks
from tests.distributed.test_global_stats import sharded
from tests.matrix.test_failing_adapter import Switch, breakable
from tests.required import require

torch = require("torch")

import torch.distributed as dist  # noqa: E402 - only where torch is

SETTINGS: dict[str, dict[str, Any]] = {
    "parallel.store": {"dynamic_broadcast": True},
    "parallel.meet": {"global_stats": True, "global_stats_seconds": 1.0},
    "collectives.bytes_of": {"cc_distribution": {"enable": True}},
    "parallel.has_store": {"dynamic_broadcast": True},
    "loop.own_gradients": {"sentinel": {"enable": True}},
    "loop.part_ways": {"sentinel": {"enable": True}},
}
"""Functions, each with the settings by which it is called."""


def replicated() -> tuple[Any, Any]:
    """A model under DistributedDataParallel and its optimizer."""
    model = torch.nn.parallel.DistributedDataParallel(Net())
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def train(settings: dict[str, Any] | None, failing: str) -> tuple[list[float], bool]:
    """The weights after some steps, and whether ``failing`` was called, which raises on the first rank."""
    from probe.pytorch import TrainerMon

    torch.manual_seed(0)
    model, optimizer = replicated() if failing.startswith("loop.") else sharded()
    switch, own, monitor = Switch(), TrainerMon.framework, None
    logging.getLogger("probe").setLevel(logging.CRITICAL)
    os.environ["PROBE_BROADCAST_SECRET"] = "0123456789abcdef0123456789abcdef"
    TrainerMon.framework = breakable(own, switch)
    os.environ["DYNAMIC_MONITOR"] = str("dynamic_broadcast" in (settings or {}))
    with TemporaryDirectory() as folder, Path(folder, LOCK).open("w", encoding="utf-8") as lock:
        os.environ[BOARD] = folder
        fcntl.flock(lock, fcntl.LOCK_EX)  # as the parent of `probe run` holds it
        file = Path(folder, "monitor.json")
        if settings is not None:
            file.write_text(json.dumps({"wg_distribution": True, "ops": ["norm"]} | settings))
            alone = failing != "parallel.has_store"  # without the first rank, the other waits for half a minute
            switch.failing = {failing} if dist.get_rank() == 0 or not alone else set()
            with suppress(Exception):  # before training, the program may be refused
                monitor = TrainerMon(file)
                monitor.set_monitor(model, 1, optimizer)
        for step in range(4):
            loss_of(model(batch(step, dist.get_rank()))).backward()
            total = torch.ones(3)
            dist.all_reduce(total)
            optimizer.step()
            optimizer.zero_grad()
        if monitor is not None:
            monitor.stop()
    TrainerMon.framework = own
    logging.getLogger("probe").setLevel(logging.NOTSET)
    del os.environ["DYNAMIC_MONITOR"], os.environ[BOARD]
    held = [getattr(parameter.detach(), "_local_tensor", parameter.detach()) for parameter in model.parameters()]
    return [float(part.double().sum()) for part in held], failing in switch.asked


@pytest.mark.parametrize("name", SETTINGS)
def test_a_function_that_fails_on_one_rank_leaves_all_training(two_ranks: Ranks, name: str) -> None:
    """The weights are those of a training without a monitor; the function has been called."""
    plain = [weights for weights, _ in two_ranks.run(train, None, name)]
    answers = two_ranks.run(train, SETTINGS[name], name)
    assert [weights for weights, _ in answers] == plain
    assert answers[0][1]
