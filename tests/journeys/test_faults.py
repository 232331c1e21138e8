"""Faults of a small network: a card claims no more than was recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.journeys.commands import card, run
from tests.required import require

require("torch")

TRAIN = """
import sys, torch
from torch import nn
kind, bad = sys.argv[1], int(sys.argv[2])
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
for step in range(bad + 12):
    x, y = torch.randn(16, 8), torch.randn(16, 1)
    if step == bad and kind == "input":
        x[3, 2] = float("nan")
    loss = (net(x) - y).pow(2).mean()
    if step == bad and kind == "loss":
        loss = loss / 0.0
    optimizer.zero_grad()
    loss.backward()
    if step == bad and kind == "state":
        optimizer.state[net[2].weight]["exp_avg"][3, 4] = float("nan")
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("kind", "bad", "head", "change"),
    [
        ("input", 25, "loss-not-finite in 0.input, step 25", "-> nan at step 25"),
        ("loss", 28, "loss-not-finite between 4 and the loss, step 28", "-> inf at step 28"),
        ("state", 22, "loss-not-finite in 2.weight, step 23", "-> nan at step 23"),
    ],
)
def test_the_place_is_no_innocent_module(tmp_path: Path, kind: str, bad: int, head: str, change: str) -> None:
    """The input of one batch, the loss alone, a parameter that an update has spoilt; with the loss as it was then."""
    (tmp_path / "train.py").write_text(TRAIN)
    lines = card(run(tmp_path, kind, bad, options=["--light"] if kind == "loss" else []))
    assert lines[0] == f"critical: {head}"
    assert any(line.startswith("loss ") and line.endswith(change) for line in lines)
    assert any("the batch of this step: its source" in line for line in lines) is (kind == "input")
