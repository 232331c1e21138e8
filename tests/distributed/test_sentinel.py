"""The sentinel on ranks that train together, under ``probe run -- torchrun``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pytorch.run_scripts import OWN
from tests.pytorch.runs import table
from tests.required import require

require("torch")

HEAD = """
import contextlib
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
dist.init_process_group("gloo")
torch.manual_seed(1)
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
def train(net, silent=None, steps=6):
    optimizer = torch.optim.AdamW(net.parameters(), 0.01)
    torch.manual_seed(dist.get_rank())
    for step in range(steps):
        for micro in range(2):
            with net.no_sync() if micro == silent else contextlib.nullcontext():
                (net(torch.randn(8, 4)).pow(2).mean() / 2).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
"""
END = "\ndist.destroy_process_group()\n"
DDP = "train(torch.nn.parallel.DistributedDataParallel(net), silent={})"
SHARDED = "fully_shard(net[0]); fully_shard(net[2]); fully_shard(net)\ntrain(net)"
CASES: dict[str, tuple[str, set[str]]] = {
    "replicas": (DDP.format(None), set()),
    "first micro batch silent": (DDP.format(0), set()),
    "last micro batch silent": (DDP.format(1), {"unreduced-accumulation", "replicas-differ"}),
    "shards": (SHARDED, set()),
}
"""Programs of two ranks, and what is to be found."""


@pytest.mark.parametrize("name", CASES)
def test_ranks_that_train_together(name: str, tmp_path: Path) -> None:
    """Warnings where ranks train by themselves, none in the healthy twin; nothing fails, and each rank has its loss and
    the norm of its gradients at every step."""
    text, wanted = CASES[name]
    (tmp_path / "train.py").write_text(HEAD + text + END, encoding="utf-8")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"]
    environment = {**os.environ, **OWN, "MONITOR_OUTPUT_DIR": str(tmp_path / "out")}
    command = [sys.executable, "-m", "probe", "run", "--", *torchrun]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "training goes on without it" not in done.stderr, done.stderr
    lines = [line for path in tmp_path.glob("out/**/checks.jsonl") for line in path.read_text().splitlines()]
    assert {line["check"] for line in map(json.loads, lines) if line["grade"] != "note"} == wanted, done.stderr
    for rank in range(2):
        (directory,) = tmp_path.glob(f"out/*rank{rank}*")
        rows = numbers(directory)
        assert {step for step, _ in rows} == {*map(str, range(6))}
        assert all(rows[str(step), "backwards"] == 2.0 and rows[str(step), "loss_root"] > 0 for step in range(6))
        assert all(rows[str(step), "gradient_norm"] > 0 for step in range(6))


def numbers(directory: Path) -> dict[tuple[str, str], float]:
    """The numbers of the run of one rank, by step and name."""
    rows = [row for path in directory.glob("run_*.csv") for row in table(path)]
    return {(row["step"], row["name"]): float(row["value"]) for row in rows}
