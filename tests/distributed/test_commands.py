"""Commands to a program of several processes: all get each before the same step."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from probe.core.control.command_requests import acknowledgements, command_of, folder_of, request
from tests.distributed.models import Net, batch, loss_of
from tests.distributed.ranks import Ranks
from tests.required import require

torch = require("torch")

import torch.distributed as dist  # noqa: E402 - only where torch is

STEPS, MOST = 5, 4000


def train(folder: str, broadcast: bool) -> tuple[list[tuple[int, float]], float, dict[str, int]]:
    """The steps before which this rank has got commands, with their factors; its learning rate; what failed.

    The first rank requests two commands after some steps. Training ends when both have come, at the same step on all.
    """
    from probe.pytorch import ReduceLearningRate, TrainerMon

    os.environ["MONITOR_OUTPUT_DIR"] = f"{folder}/output"
    os.environ["PROBE_BROADCAST_SECRET"] = "0123456789abcdef0123456789abcdef"
    file = Path(folder) / ("monitor.json" if dist.get_rank() == 0 or not broadcast else "elsewhere.json")
    if dist.get_rank() == 0 or broadcast:
        file.write_text(json.dumps({"format": "api", "dynamic_seconds": 0, "dynamic_broadcast": broadcast}))
    dist.barrier()
    model = torch.nn.parallel.DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    got: list[tuple[int, float]] = []
    with TrainerMon(file) as monitor:
        monitor.set_monitor(model, 1, optimizer)
        for step in range(MOST):
            if step == STEPS and dist.get_rank() == 0:
                for factor in (0.5, 0.25):
                    request(file, command_of("reduce_learning_rate", {"factor": factor}), "test")
            for command in monitor.commands(ReduceLearningRate):
                with command:
                    got.append((step, command.factor))
                    optimizer.param_groups[0]["lr"] *= command.factor
            enough = torch.tensor(float(len(got) == 2))
            dist.all_reduce(enough)
            if enough == dist.get_world_size():
                break
            loss_of(model(batch(step, dist.get_rank()))).backward()
            optimizer.step()
            optimizer.zero_grad()
    return got, optimizer.param_groups[0]["lr"], monitor.faults


@pytest.mark.parametrize("broadcast", [False, True])
def test_all_ranks_get_both_commands_before_the_same_steps(two_ranks: Ranks, tmp_path: Path, broadcast: bool) -> None:
    """With a folder that all see, and without one; each rank's answer lies beside the request, where there is one."""
    (one, rate, faults), (other, same, more) = two_ranks.run(train, str(tmp_path), broadcast)
    assert one == other
    assert [factor for _, factor in one] == [0.5, 0.25]
    assert min(step for step, _ in one) > STEPS
    assert rate == same == 0.5 * 0.5 * 0.25
    assert faults == more == {}
    folder = folder_of(tmp_path / "monitor.json")
    for number, name in enumerate(sorted(path.stem for path in folder.glob("*.json"))):
        answers = acknowledgements(folder, name)
        ranks = [0] if broadcast else [0, 1]
        assert [(each.rank, each.state, each.step) for each in answers] == [
            (rank, "done", one[number][0]) for rank in ranks
        ]
