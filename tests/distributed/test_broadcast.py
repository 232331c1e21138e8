"""Ranks without a common file system: the first rank's file holds for all, which read it through a store."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.models import Net, batch, loss_of
from tests.distributed.ranks import Ranks
from tests.quick_python import quick_python
from tests.required import require
from tests.user_scripts import TORCH
from tests.waiting import free_port

torch = require("torch")

import torch.distributed as dist  # noqa: E402 - only where torch is

SECONDS = (1.0, 8.0, 60.0)
"""Times in which a rank is to have read an announcement, each tried if one was read too late in the time before."""
MOST_STEPS = 100_000
SECRET = "what the ranks of these tests share"

STRANGER = """
import json, sys
from datetime import timedelta
from torch.distributed import TCPStore
store = TCPStore(sys.argv[1], int(sys.argv[2]), timeout=timedelta(seconds=60))
for configuration in json.loads(sys.argv[3]):
    said = json.dumps({"step": 2, "configuration": configuration})
    for key in ("control/0", "control/1", "control/0/claimed", "control/there", "there"):
        for group in ("0//", "default_pg//", ""):
            store.set(f"{group}probe/run {sys.argv[4]} changes/{key}", said)
print("done")
"""
"""A process that can reach the store in which the ranks have met, and puts a configuration where theirs are kept."""
RAW_STRANGER = """
import socket, sys, threading
from probe.core.distributed.address_store import Client
address = sys.argv[1], int(sys.argv[2])
try:
    Client(address, b"a guess of somebody", "run 0 changes")
except PermissionError as error:
    print("done", error)
try:
    socket.create_connection(("127.0.0.2", address[1]))
except ConnectionRefusedError:
    print("nobody listens elsewhere")
"""
"""A process that can reach the address of the monitor's own store, and does not know the secret."""


def interfere(python: str, address: bool | str, run: int) -> None:
    """Run a stranger by an interpreter while this rank waits, in a process that knows no secret."""
    hostile = [{"dynamic_on": True, "wg_distribution": True}, {"dynamic_on": True, "print_struct": True}]
    if address is True:
        where = [os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"], json.dumps(hostile), str(run)]
        code, expected = STRANGER, ["done"]
    else:
        host, port = str(address).split(":")
        where, code, expected = [host, port], RAW_STRANGER, ["done the store of the first rank has another secret than"]
        expected.append("nobody listens elsewhere")
    known = {key: value for key, value in os.environ.items() if key != "PROBE_BROADCAST_SECRET"}
    told = subprocess.check_output([python, "-c", code, *where], env=known, text=True, timeout=60)
    assert all(line.startswith(each) for line, each in zip(told.splitlines(), expected, strict=True))


def train(
    folder: str, seconds: float, address: bool | str, edits: list[dict[str, Any]], dies: bool, stranger: str = ""
) -> tuple[list[int], dict[str, int]]:
    """The steps that this rank has collected, and what failed. The next edit is made when what the last one has asked
    for is over on all ranks; each rank has a directory and a file of its own.

    Args:
        dies: whether the second rank's monitor stops at once.
        stranger: the interpreter of a process that is no rank and has done what it can before the first edit.
    """
    from probe.pytorch import TrainerMon

    leads = dist.get_rank() == 0
    own = Path(folder) / f"host{dist.get_rank()}"
    own.mkdir()
    os.environ.update(DYNAMIC_MONITOR="True", MONITOR_OUTPUT_DIR=str(own / "out"), PROBE_BROADCAST_SECRET=SECRET)
    config = {"format": "api", "dynamic_on": False, "dynamic_seconds": seconds, "dynamic_broadcast": address}
    if not leads:
        config["dynamic_on"] = True  # what is in another file than the first rank's does not count
    file = own / "monitor.json"
    file.write_text(json.dumps(config))
    before = file.read_bytes()
    model = torch.nn.parallel.DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    collected: list[int] = []
    wanted = 0
    with TrainerMon(file) as monitor:
        monitor.set_monitor(model, 1, optimizer)
        if dies and not leads:
            monitor.stop()
        if stranger and leads:
            interfere(stranger, address, monitor._attachment.number)
        for step in range(MOST_STEPS):
            settled = step >= 10 or not stranger  # by then steps are as short as they will be
            done = torch.tensor([float(settled and (len(collected) >= wanted or (dies and not leads)))])
            dist.all_reduce(done, dist.ReduceOp.MIN)
            if done and not edits:
                break
            if done:
                edit = edits.pop(0)
                wanted += edit["collect_times"]
                if leads:
                    file.write_text(json.dumps(json.loads(file.read_text()) | edit))
            loss_of(model(batch(step, dist.get_rank()))).backward()
            optimizer.step()
            optimizer.zero_grad()
            if monitor.generate_wgrad_metrics()[0]:
                collected.append(step)
        dist.barrier()
    faults = dict(monitor.faults)
    assert leads or file.read_bytes() == before
    assert not leads or not json.loads(file.read_text())["dynamic_on"]
    del os.environ["DYNAMIC_MONITOR"]
    return collected, faults


def address(own_store: bool) -> bool | str:
    """Return the address of a store of the monitor's own, or True for the one in which the processes have met."""
    if not own_store:
        return True
    return f"127.0.0.1:{free_port()}"


Answers = list[tuple[list[int], dict[str, int]]]


def read_in_time(run: Callable[[str, float], Answers], folder: Path) -> Answers:
    """Return the steps and the faults of the ranks; with more time if a rank counts that it has read an announcement
    too late, as it does on a machine that stands still for longer than ``dynamic_seconds``."""
    for seconds in SECONDS:
        own = folder / f"{seconds:g}"
        own.mkdir()
        answers = run(str(own), seconds)
        if not any("TimeoutError" in name for _, faults in answers for name in faults):
            break
    return answers


ON = {"dynamic_on": True, "wg_distribution": True}


@pytest.mark.parametrize("own_store", [False, True])
def test_a_change_of_the_first_ranks_file_holds_on_all_ranks_from_one_step_on(
    two_ranks: Ranks, tmp_path: Path, own_store: bool
) -> None:
    """Twice, through the store in which the processes have met, or one of the monitor's own."""
    edits = [ON | {"collect_times": 3}, ON | {"collect_times": 2}]
    (one, faults), (other, more) = read_in_time(
        lambda folder, seconds: two_ranks.run(train, folder, seconds, address(own_store), edits, False), tmp_path
    )
    assert one == other
    assert len(one) == 5
    assert one[2] == one[0] + 2
    assert one[4] == one[3] + 1 > one[2] + 2
    assert faults == more == {}


@pytest.mark.parametrize("own_store", [False, True])
def test_a_stranger_changes_nothing(two_ranks: Ranks, tmp_path: Path, own_store: bool) -> None:
    """A process that can reach the store, and puts configurations into it, one of which would end training: the
    ranks follow the first rank's file as without it, and count what was put there."""
    edits = [ON | {"collect_times": 2}]
    python = quick_python(*TORCH)
    subprocess.run([python, "-c", ""], check=True)  # it is ready before ranks wait for it
    (one, faults), (other, more) = read_in_time(
        lambda folder, seconds: two_ranks.run(train, folder, seconds, address(own_store), edits, False, python),
        tmp_path,
    )
    assert one == other
    assert len(one) == 2
    assert one[0] > 10, "not from the step on that the stranger names"
    assert faults == {"broadcast: PermissionError": 1 if own_store else 2}
    assert more == ({} if own_store else {"broadcast: PermissionError": 2})


def test_a_rank_that_hears_nothing_holds_nobody_up(two_ranks: Ranks, tmp_path: Path) -> None:
    """The other's monitor has stopped; this one collects by the announced configuration, and training goes on for
    both."""
    edits = [ON | {"collect_times": 3}]
    (one, faults), (other, more) = read_in_time(
        lambda folder, seconds: two_ranks.run(train, folder, seconds, True, edits, True), tmp_path
    )
    assert len(one) == 3
    assert other == []
    assert faults == more == {}


def dig(folder: str, seconds: float, most: int) -> tuple[list[int], dict[str, int]]:
    """The steps in which this rank has collected activations, until it has done so in three; the weights of the second
    rank leap in step 5."""
    from probe.pytorch import TrainerMon

    os.environ.update(MONITOR_OUTPUT_DIR=f"{folder}/host{dist.get_rank()}", PROBE_BROADCAST_SECRET=SECRET)
    config = {
        "param_distribution": True,
        "format": "api",
        "dynamic_seconds": seconds,
        "dynamic_broadcast": True,
        "alert": {"rules": [{"rule_name": "AnomalySpike", "args": {"warm_up": 2, "window": 4, "cool_down": 1}}]},
        "on_anomaly": {"arm": {"xy_distribution": True}, "steps": 3, "cool_down": most},
    }
    model = torch.nn.parallel.DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    deep: list[int] = []
    with TrainerMon(config) as monitor:
        monitor.set_monitor(model, 1, optimizer)
        for step in range(most):
            done = torch.tensor([float(len(deep))])
            dist.all_reduce(done, dist.ReduceOp.MIN)
            if done >= 3:
                break
            leaps = step == 5 and dist.get_rank() == 1
            with torch.no_grad():
                next(model.parameters()).mul_(1e6 if leaps else 1.0)
            loss_of(model(batch(step, dist.get_rank()))).backward()
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                next(model.parameters()).div_(1e6 if leaps else 1.0)
            if monitor.generate_xy_metrics()[0]:
                deep.append(step)
        dist.barrier()
    return deep, monitor.faults


def test_what_one_rank_finds_makes_all_look_deeper(two_ranks: Ranks, tmp_path: Path) -> None:
    """Though no rank sees what another writes."""
    (one, faults), (other, more) = read_in_time(
        lambda folder, seconds: two_ranks.run(dig, folder, seconds, MOST_STEPS), tmp_path
    )
    assert one == other
    assert len(one) == 3
    assert one[0] > 6
    assert faults == more == {}
    assert not [*tmp_path.rglob("arming")]
