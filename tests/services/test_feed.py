"""Heartbeats of a training run, as the server's page and its interface show them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.required import require

require("torch")
require("starlette")
require("httpx")

from tests.services.server_process import serving, wait_for  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
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


@pytest.mark.parametrize("end", ["stop", "raise"])
def test_a_run_is_seen_at_the_server(tmp_path: Path, end: str) -> None:
    """Its last step, its findings, its end; an exception with its type."""
    with serving(tmp_path / "heartbeats.db") as server:
        own = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "MONITOR_OUTPUT_DIR": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, server.address, end],
            env={**os.environ, **own},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == (1 if end == "raise" else 0), done.stderr
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
        own = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "MONITOR_OUTPUT_DIR": str(tmp_path)}
        own["PROBE_LAUNCH"] = "one"  # as launchers name it
        command = [sys.executable, "-c", RANK, server.address]
        ranks = [
            subprocess.Popen(
                [*command, str(rank), str(tmp_path / "store")], env={**os.environ, **own}, text=True, stdout=-1
            )
            for rank in range(2)
        ]
        assert [rank.communicate(timeout=120)[0] for rank in ranks] == ["{}\n", "{}\n"]
        wait_for(alerts.exists)
    told = [json.loads(line) for line in alerts.read_text().splitlines()]
    assert [each["title"] for each in told if "Straggler" in each["title"]] == [
        "toy: RunStraggler of rank/1/outside_seconds"
    ]
