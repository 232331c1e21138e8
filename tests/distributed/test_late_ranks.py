"""Ranks that are late, absent or configured otherwise: no step of training on another rank waits for them.

In each case the other rank has no more than ``global_stats_seconds`` to wait, which is longer than the test may take: a
rank that is held up fails it. Training has no collective of its own here, so nothing else keeps ranks together.
"""

from __future__ import annotations

import csv
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from probe.core.output.pipeline import LATE, WAITING
from tests.distributed.ranks import Ranks
from tests.pytorch.watching import watch
from tests.required import require

torch = require("torch")

import torch.distributed as dist  # noqa: E402 - only where torch is
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import DTensor, Shard  # noqa: E402

STEPS = 3 * WAITING
"""More than the queue of delivery and the exchange hold together."""
FOR_EVER = 100_000.0
SECONDS = 60.0
REPLICA = {"rules": [{"rule_name": "AnomalyReplica"}]}


class Shards(torch.nn.Module):
    """A weight of which each rank holds a half; its forward needs no other rank."""

    def __init__(self) -> None:
        super().__init__()
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        own = torch.full((2, 3), 1.0 + dist.get_rank())
        self.weight = torch.nn.Parameter(DTensor.from_local(own, mesh, [Shard(0)], run_check=False))

    def forward(self, x: Any) -> Any:
        return (self.weight.to_local() * x).sum()


def watched(model: Any, optimizer: Any, **more: Any) -> Any:
    given = {"xy_distribution": False, "mv_distribution": False, "global_stats": True, "ops": ["norm"]}
    return watch(model, optimizer, **given, **{"global_stats_seconds": FOR_EVER, **more})


def a_step(model: Any, optimizer: Any) -> None:
    model(torch.ones(3)).backward()
    optimizer.step()
    optimizer.zero_grad()


def rows(monitor: Any, signal: str = "grad_reduced") -> list[dict[str, str]]:
    found: list[dict[str, str]] = []
    for path in sorted(Path(monitor.output_directory).glob(f"{signal}_[0-9]*.csv")):
        with path.open(newline="", encoding="utf-8") as file:
            found += csv.DictReader(file, strict=True)
    return sorted(found, key=lambda row: int(row["step"]))


def asleep(asleep_at: int) -> tuple[list[dict[str, str]], dict[str, int], float]:
    """Rank 1 waits before a step until rank 0 has done all of its steps."""
    model = Shards()
    optimizer = torch.optim.SGD(model.parameters(), 0.125)
    monitor = watched(model, optimizer)
    for step in range(STEPS):
        if step == asleep_at:
            assert monitor.flush()
            if dist.get_rank() == 1:
                dist.barrier()
        a_step(model, optimizer)
    if dist.get_rank() == 0:
        dist.barrier()
    for _ in range(2):
        dist.barrier()  # both are awake: what follows is whole on both
        a_step(model, optimizer)
    monitor.stop()
    return rows(monitor), monitor.faults, model.weight.to_local().sum().item()


def test_a_rank_that_sleeps_holds_no_step_of_another_up(two_ranks: Ranks) -> None:
    """Rank 0 does all its steps while rank 1 sleeps in the third. Each step is written once on both, in order; what
    rank 0 could not keep back has no numbers of the whole, and once rank 1 is awake they have them again."""
    (one, faults, total), (other, more, other_total) = two_ranks.run(asleep, 2, seconds=SECONDS)
    for written in (one, other):
        assert [int(row["step"]) for row in written] == [*range(STEPS + 2)]
    late = [int(row["step"]) for row in one if row["merged"] == "0"]
    assert late == [*range(2, 2 + len(late))], "those that had waited longest"
    assert faults == {LATE: len(late)}
    assert 0 < len(late) <= STEPS - WAITING
    behind = sum(
        row["merged"] == "0" for row in other
    )  # awake, it trains on while it reads the announcements that it has missed
    assert more == ({LATE: behind} if behind else {})
    assert one[-1]["merged"] == other[-1]["merged"] == "1"
    assert float(one[-1]["global_norm"]) == float(other[-1]["global_norm"]) == pytest.approx(12**0.5)
    assert (total, other_total) == (6 - 0.125 * 6 * (STEPS + 2), 12 - 0.125 * 6 * (STEPS + 2))


def absent(otherwise: bool) -> tuple[Counter[str], dict[str, int], set[int], int]:
    """Rank 0 with ``global_stats`` and then with other ops; rank 1 has no monitor, or one without the rule. It comes
    to where rank 0 waits for it only when rank 0 has done all its steps."""
    rank, model = dist.get_rank(), Shards()
    optimizer = torch.optim.SGD(model.parameters(), 0.125)
    monitor = None
    if rank == 0:
        monitor = watched(model, optimizer, alert=REPLICA if otherwise else {}, param_distribution=True)
    elif otherwise:
        monitor = watched(model, optimizer, param_distribution=True)
    else:
        watched(model, optimizer).stop()  # runs are counted alike on all ranks
    for step in range(2 * STEPS):
        if step == STEPS and rank == 0:
            monitor.ops = ["max"]
        a_step(model, optimizer)
    early = monitor.faults if monitor is not None else {}
    numbers = [monitor._attachment.number if monitor is not None else 0]
    dist.broadcast_object_list(numbers)  # only now does rank 1 do anything that rank 0 could wait for
    if rank == 1:
        first = "replicas" if otherwise else "ranks"
        come([f"run {numbers[0]} from step {step}, {kind} (0, 1)" for step, kind in ((0, first), (STEPS, "ranks"))])
    if monitor is not None:
        monitor.stop()
    if rank == 1:
        return Counter(), {}, set(), 0
    dist.distributed_c10d._get_default_store().set(f"run {numbers[0]} has ended", "")
    steps = Counter(row["step"] for row in rows(monitor))
    return steps, early, set(steps.values()), len(steps)


def come(places: list[str]) -> None:
    """Meets rank 0, until its run has ended, where it waits: it does not at a place that it had no time to reach before
    its configuration changed."""
    from probe.pytorch.gloo import meet, store

    job, pause = dist.distributed_c10d._get_default_store(), threading.Event()
    ended = f"{places[0].partition(' from ')[0]} has ended"
    while not job.check([ended]):
        for where in [place for place in places if store(place).get("rank 0") is not None]:
            places.remove(where)
            meet((0, 1), where, b'{"alike": "", "rows": 0}', SECONDS)
        pause.wait(0.01)


@pytest.mark.parametrize("otherwise", [False, True])
def test_a_rank_that_does_not_come_holds_no_step_of_another_up(two_ranks: Ranks, otherwise: bool) -> None:
    """Neither one without a monitor nor one without the rule, not at first and not after a change while training runs;
    each step is written once."""
    (steps, early, times, count), _ = two_ranks.run(absent, otherwise, seconds=SECONDS)
    assert count == 2 * STEPS, steps
    assert times == {1}
    assert set(early) <= {LATE}, "training had ended before anything was given up"


def finished() -> tuple[list[str], bool, dict[str, int]]:
    """Rank 1 sleeps before its first step until rank 0 has collected all that it is to collect, and trained on."""
    model = Shards()
    optimizer = torch.optim.SGD(model.parameters(), 0.125)
    monitor = watched(model, optimizer, collect_times=3)
    if dist.get_rank() == 1:
        dist.barrier()
    for _ in range(10):
        a_step(model, optimizer)
    waits = monitor._attachment.session is not None
    if dist.get_rank() == 0:
        dist.barrier()
    while monitor._attachment.session is not None:  # ends by itself once all is known
        a_step(model, optimizer)
    return [row["merged"] for row in rows(monitor)], waits, monitor.faults


def test_a_run_that_has_collected_all_its_steps_does_not_wait_for_others_in_training(two_ranks: Ranks) -> None:
    """It ends in the first forward in which nothing is missing, and no row has been given up."""
    (one, waits, faults), (other, _, more) = two_ranks.run(finished, seconds=SECONDS)
    assert waits
    assert one == other == ["1"] * 3
    assert faults == more == {}
