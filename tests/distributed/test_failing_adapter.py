"""Functions of the adapter that only several processes call, each made to fail on one of them."""

from __future__ import annotations

import json
import logging
import os
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.distributed.models import batch, loss_of
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
}
"""Functions, each with the settings by which it is called."""


def train(settings: dict[str, Any] | None, failing: str) -> tuple[list[float], bool]:
    """The weights after some steps, and whether ``failing`` was called, which raises on the first rank."""
    from probe.pytorch import TrainerMon

    torch.manual_seed(0)
    model, optimizer = sharded()
    switch, own, monitor = Switch(), TrainerMon.framework, None
    logging.getLogger("probe").setLevel(logging.CRITICAL)
    os.environ["PROBE_BROADCAST_SECRET"] = "0123456789abcdef0123456789abcdef"
    TrainerMon.framework = breakable(own, switch)
    os.environ["DYNAMIC_MONITOR"] = str("dynamic_broadcast" in (settings or {}))
    with TemporaryDirectory() as folder:
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
    del os.environ["DYNAMIC_MONITOR"]
    return [
        float(parameter.detach().to_local().double().sum()) for parameter in model.parameters()
    ], failing in switch.asked


@pytest.mark.parametrize("name", SETTINGS)
def test_a_function_that_fails_on_one_rank_leaves_all_training(two_ranks: Ranks, name: str) -> None:
    """The weights are those of a training without a monitor; the function has been called."""
    plain = [weights for weights, _ in two_ranks.run(train, None, "")]
    answers = two_ranks.run(train, SETTINGS[name], name)
    assert [weights for weights, _ in answers] == plain
    assert answers[0][1]
