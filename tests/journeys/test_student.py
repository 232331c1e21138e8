"""A student whose loss is NaN: ``probe run train.py`` names the layer and the step, and ``--deep`` shows it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.journeys.commands import probe, run
from tests.required import require

require("torch")
require("duckdb")

TRAIN = """
import random, sys, torch
from torch import nn
import torch.nn.functional as F

class Norm(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))
    def forward(self, x):
        return x / x.pow(2).mean(-1, keepdim=True).sqrt() * self.weight

class Block(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.n1, self.fc = Norm(n), nn.Linear(n, n)
    def forward(self, x):
        return x + F.gelu(self.fc(self.n1(x)))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(64, 32, padding_idx=0)
        self.blocks = nn.ModuleList(Block(32) for _ in range(4))
        self.head = nn.Linear(32, 64)
    def forward(self, x):
        x = self.emb(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)

seed, bad = int(sys.argv[1]), int(sys.argv[2])
torch.manual_seed(seed)
net = Net()
optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
for step in range(bad + 12):
    tokens = torch.randint(1, 64, (8, 16))
    if step == bad:
        tokens[seed % 8] = 0  # a row of padding
    loss = F.cross_entropy(net(tokens).flatten(0, 1), tokens.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(("option", "seed", "bad"), [("", 2, 33), ("--deep", 3, 25), ("--light", 4, 40)])
def test_the_layer_and_the_step_are_in_the_first_line(tmp_path: Path, option: str, seed: int, bad: int) -> None:
    """By the closing lines of the run, and by `probe anomalies` alone: kind, place and step as planted."""
    (tmp_path / "train.py").write_text(TRAIN)
    done = run(tmp_path, seed, bad, options=[*filter(None, [option])])
    assert done.returncode == 0, done.stderr
    (head,) = [line for line in done.stderr.splitlines() if line.startswith("probe: warning: critical: ")]
    assert "blocks.0.n1" in head
    assert head.endswith(f", step {bad}")
    lines = done.stderr.partition(head)[2].splitlines()
    assert any(line.startswith("probe:   > blocks.0.n1.") and "NaN" in line for line in lines)
    assert any(line.startswith("probe:   open: probe view 'monitor_output/") for line in lines)
    assert len(done.stderr.splitlines()) < 25, done.stderr
    later = probe(tmp_path, "anomalies", "--json")
    verdict = json.loads(later.stdout)["verdict"]
    assert (verdict["grade"], verdict["since"]) == ("critical", bad)
    assert any("blocks.0.n1" in name for name in verdict["where"])
    assert verdict["lines"][0].endswith(f", step {bad}")


def test_a_healthy_run_is_healthy_in_every_command(tmp_path: Path) -> None:
    """Nothing is found, and what was not looked at is named."""
    (tmp_path / "train.py").write_text(TRAIN.replace("if step == bad:", "if False:"))
    done = run(tmp_path, 0, 30)
    lines = done.stderr.splitlines()
    assert "warning" not in done.stderr
    assert lines[1].startswith("probe: info: nothing found in ")
    assert lines[2] == "probe:   not looked at: activations, parameters and optimizer state"
    assert probe(tmp_path, "anomalies").returncode == 0


def test_options_that_say_different_things_are_refused(tmp_path: Path) -> None:
    """With what each of them stands for."""
    (tmp_path / "train.py").write_text("print('started')")
    done = probe(tmp_path, "run", "--deep", "--light", "train.py")
    assert (done.returncode, done.stdout) == (2, "")
    assert "expected one of -c, --deep and --light" in done.stderr
