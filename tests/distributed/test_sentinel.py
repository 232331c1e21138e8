"""The sentinel on ranks that train together, under ``probe run -- torchrun``."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests import user_scripts
from tests.pytorch.run_scripts import OWN
from tests.pytorch.runs import table
from tests.quick_python import probe_command, quick_python
from tests.required import require
from tests.waiting import free_port

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
BY_HAND = """
def average(net):
    for parameter in net.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad.div_(dist.get_world_size())
def train_by_hand(seed=lambda rank: 0, data=lambda rank: rank, after=average, size=lambda step: 1.0, steps=40):
    rank = dist.get_rank()
    torch.manual_seed(seed(rank))
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(net.parameters(), 0.01)
    torch.manual_seed(data(rank))
    for step in range(steps):
        optimizer.zero_grad()
        (net(size(step) * torch.randn(64, 4)) - 5).pow(2).mean().backward()
        after(net)
        optimizer.step()
def clip_on_first(net):
    if dist.get_rank() == 0:
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
"""
END = "\ndist.destroy_process_group()\n"
DDP = "train(torch.nn.parallel.DistributedDataParallel(net), silent={})"
WITHOUT_GROUPS: dict[str, tuple[str, set[str], int]] = {
    "averaged": ("train_by_hand()", set(), 0),
    "begun apart": ("train_by_hand(seed=lambda rank: rank)", {"replicas-differ"}, 0),
    "clipped on one rank": ("train_by_hand(data=lambda rank: 0, after=clip_on_first)", {"replicas-differ"}, 0),
    "same data": ("train_by_hand(data=lambda rank: 0)", {"same-data"}, 0),
    "larger inputs on one rank": (
        "train_by_hand(size=lambda step: 50.0 if dist.get_rank() == 1 and step >= 30 else 1.0)",
        {"rank-unlike-peers"},
        30,
    ),
}
"""Programs of two ranks that average gradients by themselves, what is to be found, and since which step."""
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
    output = finished(started(tmp_path, "--standalone", "--nproc-per-node", "2"))
    assert {line["check"] for line in warnings(tmp_path)} == wanted, output
    for rank in range(2):
        (directory,) = tmp_path.glob(f"out/*rank{rank}*")
        rows = numbers(directory)
        assert {step for step, _ in rows} == {*map(str, range(6))}
        assert all(rows[str(step), "backwards"] == 2.0 and rows[str(step), "loss_root"] > 0 for step in range(6))
        assert all(rows[str(step), "gradient_norm"] > 0 for step in range(6))


@pytest.mark.parametrize("name", WITHOUT_GROUPS)
def test_ranks_of_which_nothing_names_groups(name: str, tmp_path: Path) -> None:
    """What they have in common shows in their gradients, losses and parameters; nothing fails."""
    text, wanted, since = WITHOUT_GROUPS[name]
    (tmp_path / "train.py").write_text(HEAD + BY_HAND + text + END, encoding="utf-8")
    done = finished(started(tmp_path, "--standalone", "--nproc-per-node", "2"))
    found = warnings(tmp_path)
    assert {line["check"] for line in found} == wanted, done
    assert all(line["since"] == since and line["ranks"] == [0, 1] for line in found), found


@pytest.mark.parametrize("apart", [False, True])
def test_ranks_of_two_nodes_are_compared(apart: bool, tmp_path: Path) -> None:
    """By the parent of the first rank, in the output root that both share, where nothing is left of that."""
    text = f"train_by_hand(lambda rank: {'rank' if apart else 0})"
    (tmp_path / "train.py").write_text(HEAD + BY_HAND + text + END, encoding="utf-8")
    common = ("--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", str(free_port()), "--nproc-per-node", "1")
    nodes = [started(tmp_path, *common, "--node-rank", str(node)) for node in range(2)]
    outputs = [finished(node) for node in nodes]
    found = warnings(tmp_path)
    wanted = [("replicas-differ", [0, 1], 0)] if apart else []
    assert [(line["check"], line["ranks"], line["since"]) for line in found] == wanted, outputs
    assert "ranks 0-1" in outputs[0], outputs[0]
    assert [*tmp_path.glob("out/.nodes-*")] == []


def started(folder: Path, *options: str) -> subprocess.Popen[str]:
    """``train.py`` in the folder, under ``probe run -- torchrun``."""
    torchrun = [quick_python(*user_scripts.TORCH), "-m", "torch.distributed.run", *options, "train.py"]
    environment = {**os.environ, **OWN, "MONITOR_OUTPUT_DIR": str(folder / "out")}
    command = probe_command("run", "--", *torchrun, modules=user_scripts.TORCH)
    return subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True)


def finished(process: subprocess.Popen[str]) -> str:
    """What a program has printed, which has ended well."""
    _, output = process.communicate()
    assert process.returncode == 0, output
    assert "training goes on without it" not in output, output
    assert "failure" not in output, output
    return output


def warnings(folder: Path) -> list[dict[str, Any]]:
    """Findings of the checks that are no notes."""
    lines = [line for path in folder.glob("out/**/checks.jsonl") for line in path.read_text().splitlines()]
    return [line for line in map(json.loads, lines) if line["grade"] != "note"]


def numbers(directory: Path) -> dict[tuple[str, str], float]:
    """The numbers of the run of one rank, by step and name."""
    rows = [row for path in directory.glob("run_*.csv") for row in table(path)]
    return {(row["step"], row["name"]): float(row["value"]) for row in rows}
