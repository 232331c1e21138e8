"""A whole diagnosis by an agent, which has the tools of ``probe mcp`` alone."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests import user_scripts
from tests.agents.agent_client import asking
from tests.forks import ROOT
from tests.quick_python import probe_command, quick_python
from tests.required import require_installed

require_installed("torch", "duckdb", "mcp")

LAYER, STEP, RANK = "blocks.2.norm", 9, 1
"""Where the fault is planted."""
TRAIN = f"""
import sys
import torch
import torch.distributed as dist
from torch import nn

class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))
        self.guard = 1e-6
    def forward(self, x):
        return x / (x.pow(2).mean(-1, keepdim=True) + self.guard).sqrt() * self.weight

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.fc = Norm(), nn.Linear(8, 8)
    def forward(self, x):
        return x + self.fc(self.norm(x))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(8, 1)
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)

dist.init_process_group("gloo")
torch.manual_seed(1)
net = Net()
optimizer = torch.optim.AdamW(net.parameters(), 0.01)
replicas = nn.parallel.DistributedDataParallel(net)
torch.manual_seed(dist.get_rank())
for step in range(14):
    x = torch.randn(16, 8)
    if "broken" in sys.argv and step == {STEP} and dist.get_rank() == {RANK}:
        net.{LAYER.replace(".2.", "[2].")}.guard = -1e6
    loss = (replicas(x) - x.sum(-1, keepdim=True)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A broken and a healthy run of the same program, on two ranks."""
    folder = tmp_path_factory.mktemp("training")
    (folder / "train.py").write_text(TRAIN)
    own = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    launcher = [quick_python(*user_scripts.TORCH), "-m", "torch.distributed.run", "--standalone"]
    command = probe_command("run", "--deep", "--", *launcher, "--nproc-per-node", "2", "train.py")
    started = [
        subprocess.Popen(
            [*command, kind],
            cwd=folder,
            env={**own, "MONITOR_OUTPUT_DIR": str(folder / "runs" / kind)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for kind in ("broken", "healthy")
    ]
    for process in started:
        _, output = process.communicate()
        assert process.returncode == 0, output
    return folder / "runs"


def test_an_agent_finds_the_planted_fault(runs: Path, tmp_path: Path) -> None:
    """From the list of runs over verdict, findings, heatmap and row to the healthy run: layer, step and rank are the
    planted ones in each answer, and the verdict is the one of the command line."""
    with asking(runs, tmp_path) as agent:
        names = {run["name"]: run["number"] for run in agent.ask("runs")["runs"]}
        assert names.keys() == {"broken", "healthy"}

        answer = agent.ask("verdict", run="broken")
        verdict, place = answer["verdict"], answer["first_row"]
        assert (answer["state"], answer["health"]) == ("done", "found")
        assert (verdict["grade"], verdict["kind"]) == ("critical", "NaN")
        assert (verdict["where"], verdict["since"], verdict["ranks"]) == ([f"{LAYER}.output"], STEP, [RANK])
        row, signal = f"{LAYER}.output", "actv"
        assert place == {"signal": signal, "row": row, "op": place["op"], "rank": RANK, "step": STEP}

        first = agent.ask("findings", run="broken", signal=signal, limit=1)["findings"][0]
        assert (first["row"], first["rank"], first["step"], first["value"]) == (row, RANK, STEP, "nan")
        check = agent.ask("findings", run="broken", rule="loss-not-finite")["findings"][0]
        assert (check["of"], check["grade"], check["step"], check["ranks"]) == ("check", "critical", STEP, [RANK])

        around = {"run": "broken", "signal": signal, "first_step": STEP - 2, "last_step": STEP}
        heatmap = agent.ask("heatmap", **around, limit=200)
        bad = [line for line in heatmap["lines"] if line["not_finite"]]
        assert heatmap["steps"] == [STEP - 2, STEP - 1, STEP]
        assert (bad[0]["row"], bad[0]["not_finite"]) == (row, {"steps": STEP, "rank": RANK})
        ranks = agent.ask("heatmap", **around, row=row)["lines"]
        assert [line["rank"] for line in ranks if line["not_finite"]] == [RANK]

        values = {
            (rank, step): agent.ask("row", run="broken", signal=signal, row=row, rank=rank, step=step)["values"]["norm"]
            for rank in (0, RANK)
            for step in (STEP - 1, STEP)
        }
        assert [place for place, value in values.items() if value == "nan"] == [(RANK, STEP)]
        curve = agent.ask("curve", run="broken", ranks=str(RANK))
        assert dict(zip(curve["steps"], curve["curves"][0]["values"], strict=True))[STEP] == "nan"

        both = agent.ask("curve", run="broken", signal=signal, name=row, op="norm", points=1)
        assert ([line["rank"] for line in both["curves"]], both["left_off"]) == ([0, RANK], None)

        compared = agent.ask("compare", run="broken", against="healthy")
        assert (compared["state"], compared["agrees"]) == ("done", False)
        difference = compared["differences"][0]
        assert (difference["row"], difference["step"], difference["rank"]) == (row, STEP, RANK)

        assert agent.ask("verdict", run="healthy")["health"] == "healthy"

    own = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = probe_command("anomalies", runs / "broken", "--json")
    printed = json.loads(subprocess.run(command, env=own, capture_output=True, text=True, check=False).stdout)
    same = {name: value for name, value in verdict.items() if name != "where_left_off"}
    assert same == {name: value for name, value in printed["verdict"].items() if name != "lines"}
