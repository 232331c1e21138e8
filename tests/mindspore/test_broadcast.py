"""Changes that ranks announce through a store, on MindSpore."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.distributed.ranks import Ranks
from tests.mindspore.toys import Deep, TrainerMon, ms, nn, one_step, tensor
from tests.waiting import free_port

RANKS = 2
SECONDS = (1.0, 8.0, 60.0)
"""Times in which a rank is to have read an announcement, each tried if one was read too late in the time before."""
MOST_STEPS = 100_000
SECRET = "what the ranks of this test share"
STRANGER = """
import socket, sys
from probe.core.distributed.address_store import Client
host, port = sys.argv[1].split(":")
try:
    Client((host, int(port)), b"a guess of somebody", "run 0 changes")
except PermissionError:
    print("refused")
try:
    socket.create_connection(("127.0.0.2", int(port)))
except ConnectionRefusedError:
    print("nobody listens elsewhere")
"""
"""A process that is no rank, and can reach the address."""


def train(folder: Path, seconds: float, address: str) -> tuple[list[int], dict[str, int]]:
    """Train in each process until both have collected by the file of the first one of step 10: the steps collected, and
    what failed."""
    rank = ms.communication.get_rank()
    own = folder / f"host{rank}"
    own.mkdir()
    os.environ.update(DYNAMIC_MONITOR="True", MONITOR_OUTPUT_DIR=str(own), PROBE_BROADCAST_SECRET=SECRET)
    config = {"format": "api", "dynamic_seconds": seconds, "dynamic_broadcast": address}
    file = own / "monitor.json"
    file.write_text(json.dumps(config))
    net = Deep()
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    total = ms.ops.AllReduce()
    collected: list[int] = []
    with TrainerMon(file) as monitor:
        monitor.set_monitor(net, 1, optimizer)
        if rank == 0:
            told = subprocess.check_output([sys.executable, "-c", STRANGER, address], text=True, timeout=60)
            assert told.split("\n") == ["refused", "nobody listens elsewhere", ""]
        for step in range(MOST_STEPS):
            if total(tensor(np.array([len(collected) >= 2], np.float32))).asnumpy()[0] == RANKS:
                break
            if step == 10 and rank == 0:
                file.write_text(json.dumps(config | {"dynamic_on": True, "wg_distribution": True, "collect_times": 2}))
            one_step(net, optimizer)
            if monitor.generate_wgrad_metrics()[0]:
                collected.append(step)
    del os.environ["DYNAMIC_MONITOR"], os.environ["PROBE_BROADCAST_SECRET"]
    return collected, monitor.faults


def test_a_change_of_the_first_ranks_file_holds_on_all_ranks_from_one_step_on(two_ranks: Ranks, tmp_path: Path) -> None:
    """Each process has a directory and a file of its own; a stranger at the store changes nothing."""
    for seconds in SECONDS:
        folder = tmp_path / f"{seconds:g}"
        folder.mkdir()
        told = two_ranks.run(train, folder, seconds, f"127.0.0.1:{free_port()}")
        if not any("TimeoutError" in name for _, faults in told for name in faults):
            break
    (one, faults), (other, more) = told
    assert one == other
    assert len(one) == 2
    assert one[0] > 10
    assert faults == {"broadcast: PermissionError": 1}, "a stranger has come, and was refused"
    assert more == {}


def test_an_address_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before training: MindSpore's processes do not meet in a store."""
    monkeypatch.setenv("RANK_SIZE", "2")
    monkeypatch.setenv("PROBE_BROADCAST_SECRET", SECRET)
    monitor = TrainerMon({"wg_distribution": True, "dynamic_broadcast": True, "format": "api"})
    net = Deep()
    with pytest.raises(ValueError, match=r"dynamic_broadcast: true: mindspore keeps no store.*free port"):
        monitor.set_monitor(net, 1, nn.SGD(net.trainable_params(), 0.1))
