"""Heartbeats of a training run, as the server's page and its interface show them."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.required import require

require("torch")
require("starlette")
require("httpx")

from tests.forks import Forked  # noqa: E402
from tests.services.server_process import fork_server, serving  # noqa: E402
from tests.waiting import PATIENCE, wait_for  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
MODULES = ("torch", "torch.distributed", "probe.pytorch")
SCRIPT = """
import sys, torch
from probe.pytorch import TrainerMon
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
monitor = TrainerMon({"format": "api", "wg_distribution": True, "run": {"job": "toy", "server": sys.argv[1]}})
monitor.set_monitor(model, 1, optimizer)
for step in range(30):
    loss = model(torch.ones(3, 4)).square().mean() * (float("nan") if step == 25 else 1)
    monitor.log(loss=loss)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
if sys.argv[2] == "raise":
    raise RuntimeError("no more")
monitor.stop()
print(monitor.faults)
"""


def trained(folder: Path, script: str, ends: Sequence[Sequence[str]], **environment: str) -> list[tuple[int, str]]:
    """Exit code and output of a script run side by side with the arguments ``ends``."""
    (folder / "train.py").write_text(script)
    own = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "MONITOR_OUTPUT_DIR": str(folder)}
    processes = list[tuple[Forked, Path]]()
    for number, arguments in enumerate(ends):
        output = folder / f"output{number}"
        with output.open("w") as file:
            process = fork_server(MODULES).start(
                [str(folder / "train.py"), *arguments],
                environment={**own, **environment},
                cwd=str(folder),
                stdout=file.fileno(),
                stderr=file.fileno(),
            )
        processes.append((process, output))
    try:
        return [(process.wait(4 * PATIENCE), output.read_text()) for process, output in processes]
    finally:
        for process, _ in processes:
            process.kill()


@pytest.mark.parametrize("end", ["stop", "raise"])
def test_a_run_is_seen_at_the_server(tmp_path: Path, end: str) -> None:
    """Its last step, its findings, its end; an exception with its type."""
    with serving(tmp_path / "heartbeats.db") as server:
        ((code, output),) = trained(tmp_path, SCRIPT, [[server.address, end]])
        assert code == (1 if end == "raise" else 0), output
        events, stored = json.dumps(server.get("/v1/events")), server.stored("toy")
    losses = [each["values"]["loss"] for each in stored if each["kind"] == "train_metrics"]
    assert len(losses) == 30
    assert [step for step, loss in enumerate(losses) if loss == "NaN"] == [25, 26, 27, 28, 29]
    assert "RunNan" in events
    assert "AnomalyNan" in events
    assert ("RuntimeError" in events) == (end == "raise")


RANK = """
import sys, time, torch
from torch import distributed
from probe.pytorch import TrainerMon
rank = int(sys.argv[2])
distributed.init_process_group("gloo", init_method=f"file://{sys.argv[3]}", rank=rank, world_size=2)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
cc = {"enable": True, "cc_codeline": []}
monitor = TrainerMon({"format": "api", "cc_distribution": cc, "run": {"job": "toy", "server": sys.argv[1]}})
monitor.set_monitor(model, 1, optimizer)
for step in range(80):
    loss = model(torch.ones(3, 4)).square().mean()
    monitor.log(loss=loss)
    loss.backward()
    end = time.perf_counter() + 0.02 * rank
    while time.perf_counter() < end:
        torch.ones(100).sum()
    distributed.all_reduce(model.weight.grad)
    optimizer.step()
    optimizer.zero_grad()
monitor.stop()
distributed.destroy_process_group()
print(monitor.faults)
"""


def test_a_slow_rank_is_found_while_training_runs(tmp_path: Path) -> None:
    """Both take equally long, as the other waits in a collective: the time outside of it tells them apart."""
    config, alerts = tmp_path / "server.json", tmp_path / "alerts.jsonl"
    channel = {"channel": "file", "args": {"path": str(alerts)}}
    config.write_text(json.dumps({"alert": {"channels": [channel], "group_seconds": 0.1}}))
    with serving(tmp_path / "heartbeats.db", "--config", str(config)) as server:
        ends = [(server.address, str(rank), str(tmp_path / "store")) for rank in range(2)]
        ranks = trained(tmp_path, RANK, ends, PROBE_LAUNCH="one")  # as launchers name it
        assert [(code, output.splitlines()[-1]) for code, output in ranks] == [(0, "{}")] * 2, ranks
        wait_for(alerts.exists)
    told = [json.loads(line) for line in alerts.read_text().splitlines()]
    assert {each["title"] for each in told if "Straggler" in each["title"] and not each["resolved"]} == {
        "toy: RunStraggler of rank/1/outside_seconds"
    }
