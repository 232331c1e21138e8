"""``probe check``: programs of torch as they are, of which a few updates show their faults."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests import user_scripts
from tests.cli.json_schema import answer_of
from tests.forks import ROOT
from tests.quick_python import probe_command
from tests.required import require

require("torch")

DECODER = """
import argparse, atexit, os, sys, tempfile
import torch
from torch import nn
from torch.nn import functional as F

class Mixer(nn.Module):  # each position gets the mean of others
    def __init__(self, causal):
        super().__init__()
        self.inner, mask = nn.Linear(32, 32), torch.ones(16, 16)
        self.register_buffer("mask", mask.tril() if causal else mask)
    def forward(self, x):
        size = x.shape[1]
        mask = self.mask[:size, :size] / self.mask[:size, :size].sum(1, keepdim=True)
        return x + self.inner(torch.einsum("st,btd->bsd", mask, x))

class Decoder(nn.Module):
    def __init__(self, causal=True):
        super().__init__()
        self.embed, self.mixer, self.drop = nn.Embedding(50, 32), Mixer(causal), nn.Dropout(0.1)
        self.head = nn.Linear(32, 50)
    def forward(self, idx, targets=None):
        logits = self.head(self.drop(self.mixer(self.embed(idx))))
        return logits, F.cross_entropy(logits.view(-1, 50), targets.view(-1))

torch.manual_seed(0)
"""
FAULTY = (
    DECODER
    + """
from types import SimpleNamespace
args = SimpleNamespace(max_steps=100)
model = Decoder(causal=False)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / 100))
for step in range(args.max_steps):
    for micro in range(2):
        tokens = torch.randint(0, 50, (4, 17))
        model(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())[1].backward()
        schedule.step()
    optimizer.step()
    optimizer.zero_grad()
"""
)
HEALTHY = (
    DECODER
    + """
from pathlib import Path
assert os.environ["PROBE_CHECK"] == "1"
model = Decoder()
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)
tempfile.mkstemp()
try:
    for step in range(40):
        tokens = torch.randint(0, 50, (4, 17))
        loss = model(idx=tokens[:, :-1], targets=tokens[:, 1:].contiguous())[1]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        print("step", step, flush=True)
finally:
    torch.save(model.state_dict(), "checkpoint.pt")
"""
)
MANY = """
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, IterableDataset

class Pictures(Dataset):
    def __len__(self): return 256
    def __getitem__(self, n): return torch.tensor(np.random.rand(3, 8, 8) * 255, dtype=torch.float32), n % 10

class Stream(IterableDataset):
    def __iter__(self): return (torch.full((4,), float(n)) for n in range(100))

def seed(worker): np.random.seed(0)

torch.manual_seed(0)
net = nn.Sequential(nn.Conv2d(3, 16, 3), nn.Sigmoid(), nn.Flatten(), nn.Linear(576, 32), nn.ReLU(), nn.Linear(32, 10))
nn.init.constant_(net[3].weight, 0.01)
judge = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.Adam([*net.parameters(), *judge.parameters()], 1e-3)
pictures = DataLoader(Pictures(), 8, num_workers=2, worker_init_fn=seed)
for (x, y), z in zip(pictures, DataLoader(Stream(), 8, num_workers=2)):
    optimizer.zero_grad()
    loss = F.nll_loss(net(x).softmax(1), y) + F.cross_entropy(net(x).softmax(1), y)
    loss = loss + F.binary_cross_entropy_with_logits(torch.sigmoid(judge(z)).squeeze(1), torch.ones(len(z)))
    loss = loss + F.mse_loss(judge(z), torch.rand(len(z)))
    loss.backward()
    optimizer.step()
"""


class Checked(NamedTuple):
    """End of ``probe check``."""

    code: int
    answer: dict[str, Any]
    errors: str

    @property
    def grades(self) -> dict[str, str]:
        """Grades of the findings, by kind."""
        return {entry["kind"]: entry["grade"] for entry in self.answer["findings"]}


def checked(folder: Path, text: str, *options: str) -> Checked:
    """Run ``probe check`` on a program in ``folder``, whose temporary files are removed."""
    (folder / "train.py").write_text(text)
    own = {name: value for name, value in os.environ.items() if name != "MONITOR_OUTPUT_DIR"}
    with tempfile.TemporaryDirectory(prefix="c-", dir="/tmp") as temporary:  # paths of sockets must be short
        own |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TMPDIR": temporary}
        command = probe_command("check", "--json", *options, "train.py", modules=user_scripts.TORCH)
        done = subprocess.run(command, cwd=folder, env=own, capture_output=True, text=True, check=False, timeout=300)
        assert [*Path(temporary).iterdir()] == []
    return Checked(done.returncode, answer_of("check", done.stdout), done.stderr)


@pytest.mark.slow
def test_a_decoder_that_sees_the_future_is_named_with_its_loop(tmp_path: Path) -> None:
    """The mask, the accumulation and the schedule, each with its advice; the exit code says that there are warnings."""
    done = checked(tmp_path, FAULTY)
    warnings = {kind for kind, grade in done.grades.items() if grade != "note"}
    assert done.code == 1, done.errors
    assert warnings == {"not-causal", "undivided-accumulation", "schedule-ahead"}
    first = done.answer["findings"][0]
    assert {"grade", "kind", "where", "rank", "step", "text", "evidence", "remedy"} == set(first)
    assert (first["rank"], first["step"], bool(first["remedy"])) == (0, 0, True)
    assert done.answer["judged"]["steps"] == 6


@pytest.mark.slow
def test_a_healthy_program_gets_no_warning_and_leaves_nothing(tmp_path: Path) -> None:
    """It ends at the wanted update, before it writes its checkpoint; no file stays, of the program or of ours."""
    done = checked(tmp_path, HEALTHY, "--steps", "4", "--show")
    assert (done.code, done.grades) == (0, {}), done.errors
    assert done.answer["judged"]["steps"] == 4
    assert "step 2\n" in done.errors
    assert "step 3\n" not in done.errors
    before_training, loop = done.answer["preflight"]
    assert before_training.startswith("before training: ")
    assert loop.startswith("preflight: ")
    assert "failed" not in before_training
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.slow
def test_losses_data_and_beginnings_are_judged(tmp_path: Path) -> None:
    """Functions applied twice, labels of another shape, workers that draw and read alike, units that are alike."""
    done = checked(tmp_path, MANY, "--output", "kept")
    assert {kind: grade for kind, grade in done.grades.items() if kind != "gradient-leap"} == {
        "softmax-twice": "warning",
        "not-log-probabilities": "warning",
        "broadcast-loss": "warning",
        "symmetric-units": "warning",
        "saturated-units": "warning",
        "same-worker-numbers": "warning",
        "samples-repeated": "warning",
        "same-order": "note",
        "unnormalized-inputs": "note",
    }
    places = {entry["kind"]: entry["where"] for entry in done.answer["findings"]}
    assert "3.weight" in places["symmetric-units"]
    assert (tmp_path / "kept" / "program.log").is_file()
