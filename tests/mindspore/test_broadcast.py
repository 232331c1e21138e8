"""Changes that ranks tell each other through a store, on MindSpore.

Run as a script, this file is one of the processes that train.
"""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import numpy as np
import pytest

from tests.mindspore.processes import run
from tests.mindspore.toys import Deep, TrainerMon, ms, nn, one_step, tensor

RANKS = 2
SECONDS = 1.0
"""In which a rank hears of what is said, on a busy machine too: it looks ten times in it."""
MOST_STEPS = 100_000
ADDRESS = "TEST_BROADCAST_ADDRESS"


def train() -> None:
    """What each process does until both have collected what the file of the first one asks for in step 2."""
    ms.set_device("CPU")
    ms.communication.init()
    rank = ms.communication.get_rank()
    own = Path(os.environ["MONITOR_OUTPUT_DIR"]) / f"host{rank}"
    own.mkdir(parents=True)
    os.environ.update(DYNAMIC_MONITOR="True", MONITOR_OUTPUT_DIR=str(own))
    config = {"format": "api", "dynamic_seconds": SECONDS, "dynamic_broadcast": os.environ[ADDRESS]}
    file = own / "monitor.json"
    file.write_text(json.dumps(config))
    net = Deep()
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    total = ms.ops.AllReduce()
    collected: list[int] = []
    with TrainerMon(file) as monitor:
        monitor.set_monitor(net, 1, optimizer)
        for step in range(MOST_STEPS):
            if total(tensor(np.array([len(collected) >= 2], np.float32))).asnumpy()[0] == RANKS:
                break
            if step == 2 and rank == 0:
                file.write_text(json.dumps(config | {"dynamic_on": True, "wg_distribution": True, "collect_times": 2}))
            one_step(net, optimizer)
            if monitor.generate_wgrad_metrics()[0]:
                collected.append(step)
    (own / "told.json").write_text(json.dumps([collected, monitor.faults]))


def test_a_change_of_the_first_ranks_file_holds_on_all_ranks_from_one_step_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each process has a directory and a file of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv(ADDRESS, f"127.0.0.1:{free.getsockname()[1]}")
    out = run(__file__, RANKS, tmp_path)
    (one, faults), (other, more) = (json.loads((out / f"host{rank}/told.json").read_text()) for rank in range(RANKS))
    assert one == other
    assert len(one) == 2
    assert one[0] > 3
    assert faults == more == {}


def test_an_address_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before training: MindSpore's processes do not meet in a store."""
    monkeypatch.setenv("RANK_SIZE", "2")
    monitor = TrainerMon({"wg_distribution": True, "dynamic_broadcast": True, "format": "api"})
    net = Deep()
    with pytest.raises(ValueError, match=r"dynamic_broadcast: true: mindspore keeps no store.*free port"):
        monitor.set_monitor(net, 1, nn.SGD(net.trainable_params(), 0.1))


if __name__ == "__main__":
    train()
