"""``AnomalyReplica`` while training runs: which rank of a data-parallel run holds other parameters than the rest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.models import Net, batch, loss_of
from tests.distributed.ranks import Ranks
from tests.pytorch.watching import watch
from tests.required import require

torch = require("torch")

import torch.distributed as dist  # noqa: E402 - only where torch is
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (  # noqa: E402
    PostLocalSGDState,
    post_localSGD_hook,
)
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: E402, N817

STEPS, BROKEN_AT = 6, 3
Found = list[tuple[int, str, str, int]]


def flip(tensor: Any, bit: int) -> None:
    """One bit of one element, as a fault of memory does it."""
    tensor.detach().view(torch.int32).view(-1)[1] ^= 1 << bit


def trained(
    broken: int | None, absent: int | None = None, rule: str = "AnomalyReplica", state: bool = False
) -> tuple[Found, dict[str, int], list[str], list[float]]:
    """Findings of a rank, faults inside the monitor, the messages, and the losses."""
    model = DDP(Net())
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.5)
    monitor = watch(
        model,
        optimizer,
        xy_distribution=False,
        global_stats=dist.get_rank() != absent,
        global_stats_seconds=2.0 if absent is not None else 20.0,
        alert={"rules": [{"rule_name": rule}]},
    )
    losses = []
    for step in range(STEPS):
        loss = loss_of(model(batch(step, 0)))
        loss.backward()
        if step == BROKEN_AT and dist.get_rank() == broken:
            weight = model.module.down.weight
            flip(*((optimizer.state[weight]["momentum_buffer"], 20) if state else (weight, 0)))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    monitor.stop()
    found = [(f.step, f.signal, str(f.key.name), f.rank) for f in monitor.findings]
    return found, monitor.faults, [f.message for f in monitor.findings], losses


def test_the_odd_one_out_names_itself(four_ranks: Ranks) -> None:
    """The lowest bit of one element on rank 2: that rank names the parameter at that step, once; others are silent."""
    answers = four_ranks.run(trained, 2)
    assert [faults for _, faults, _, _ in answers] == [{}] * 4
    assert [found for found, _, _, _ in answers] == [
        [],
        [],
        [(BROKEN_AT, signal, "down.weight", 2) for signal in ("param_origin", "param_updated")],
        [],
    ]
    assert answers[2][2][0].endswith("Rank 2 differs from rank 0; of 4 replicas 1 has these numbers.")


def test_of_two_both_say_that_they_differ(two_ranks: Ranks) -> None:
    """With two there is no majority; differing optimizer state is reported, and the parameter that follows from it."""
    (first, _, told, _), (second, _, _, _) = two_ranks.run(trained, 1, state=True)
    assert first[0] == (BROKEN_AT, "momentum_buffer", "down.weight", 0)
    assert second[0] == (BROKEN_AT, "momentum_buffer", "down.weight", 1)
    assert {(step, signal) for step, signal, _, _ in first[1:]} == {
        (BROKEN_AT, "param_updated"),
        (BROKEN_AT + 1, "param_origin"),
    }
    assert told[0].endswith("Rank 0 differs from rank 1; of 2 replicas 1 has these numbers.")


def test_healthy_replicas_are_silent(two_ranks: Ranks) -> None:
    """And training is what it is without the rule."""
    healthy, without = two_ranks.run(trained, None), two_ranks.run(trained, None, rule="AnomalyNan")
    for (found, faults, _, losses), (_, _, _, plain) in zip(healthy, without, strict=True):
        assert (found, faults) == ([], {})
        assert losses == plain


@pytest.mark.parametrize("absent", [1])
def test_a_rank_that_takes_no_part_holds_nobody_up(two_ranks: Ranks, absent: int) -> None:
    """The other waits for it once, in parallel with training, logs it, and reports nothing more."""
    (found, faults, _, losses), (_, none, _, others) = two_ranks.run(trained, None, absent=absent)
    assert found == []
    assert list(faults) == ["global statistics: TimeoutError"]
    assert none == {}
    plain = two_ranks.run(trained, None, rule="AnomalyNan")
    assert [losses, others] == [plain[0][3], plain[1][3]]


def in_parts(split: bool) -> tuple[Found, dict[str, int]]:
    """Findings of a rank that holds its own part of a layer under the same name, without a word about groups; the norm
    is replicated, and one element of it changes on rank 1."""
    rank, broken_at = dist.get_rank(), 8
    model = Net(seed=rank if split else 0)
    with torch.no_grad():
        model.up.bias.zero_()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    monitor = watch(
        model,
        optimizer,
        xy_distribution=False,
        mv_distribution=False,
        global_stats=True,
        alert={"rules": [{"rule_name": "AnomalyReplica"}]},
    )
    for step in range(broken_at + 2):
        loss_of(model(batch(step, 0))).backward()
        for parameter in model.norm.parameters():
            dist.all_reduce(parameter.grad)
        if step == broken_at and rank == 1:
            flip(model.norm.weight, 0)
        optimizer.step()
        optimizer.zero_grad()
    monitor.stop()
    return [(f.step, f.signal, str(f.key.name), f.rank) for f in monitor.findings], monitor.faults


def test_parts_are_no_replicas_though_nothing_names_groups(two_ranks: Ranks) -> None:
    """Rows that never were equal while they changed are left alone; of those that were, the difference is reported."""
    for rank, (found, faults) in enumerate(two_ranks.run(in_parts, True)):
        assert faults == {}
        assert {(name, of) for _, _, name, of in found} == {("norm.weight", rank)}
        assert min(step for step, _, _, _ in found) == 8


def apart(warm_up: int) -> tuple[Found, dict[str, int], list[int]]:
    """Findings of a rank that averages gradients for some steps, and then trains on its own data alone; faults, and
    its data-parallel group by the manifest."""
    subgroup, _ = dist.new_subgroups(group_size=1)
    model = DDP(Net())
    model.register_comm_hook(PostLocalSGDState(None, subgroup, warm_up), post_localSGD_hook)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    settings = {"global_stats": True, "alert": {"rules": [{"rule_name": "AnomalyReplica"}]}}
    monitor = watch(model, optimizer, xy_distribution=False, **settings)
    for step in range(STEPS):
        loss_of(model(batch(step, dist.get_rank()))).backward()
        optimizer.step()
        optimizer.zero_grad()
    monitor.stop()
    found = [(f.step, f.signal, str(f.key.name), f.rank) for f in monitor.findings]
    manifest = json.loads((Path(monitor.output_directory) / "manifest.json").read_text(encoding="utf-8"))
    return found, monitor.faults, manifest["groups"]["data_parallel"]


def test_ranks_that_train_apart_by_intention_are_no_replicas(two_ranks: Ranks) -> None:
    """Local SGD: parameters differ between two averages, and files name each rank as a replica of itself alone."""
    assert two_ranks.run(apart, BROKEN_AT) == [([], {}, [0]), ([], {}, [1])]
