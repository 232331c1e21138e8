"""A user of the Hugging Face Trainer with W&B: layer and step are named, in the terminal and in the user's run."""

from __future__ import annotations

import csv
import json
import os
import re
from pathlib import Path

import pytest

from tests import user_scripts
from tests.core.trackers.wandb_file import read_run
from tests.journeys.commands import ROOT, card, run
from tests.required import require_installed, require_version

require_installed("torch", "transformers", "accelerate")

TRAIN = """
import sys, torch
from transformers import Trainer, TrainingArguments

class Block(torch.nn.Module):
    def __init__(self, n):
        super().__init__()
        self.fc = torch.nn.Linear(n, n)
    def forward(self, x):
        return x + self.fc(x / x.pow(2).mean(-1, keepdim=True).sqrt())

class Regression(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 8, bias=False), Block(8), Block(8), torch.nn.Linear(8, 1))
    def forward(self, x, labels):
        out = self.layers(x)
        return {"loss": (out - labels).pow(2).mean(), "logits": out}

class InOrder(Trainer):
    def _get_train_sampler(self, *arguments):
        return torch.utils.data.SequentialSampler(self.train_dataset)

seed, bad = int(sys.argv[1]), int(sys.argv[2])
torch.manual_seed(seed)
net = Regression()
data = [{"x": torch.randn(4), "labels": torch.randn(1)} for _ in range(4 * (bad + 4))]
data[4 * bad + seed % 4]["x"].zero_()
arguments = TrainingArguments("trainer", per_device_train_batch_size=4, num_train_epochs=1, save_strategy="no",
    report_to=sys.argv[3:], use_cpu=True, disable_tqdm=True, logging_steps=1, logging_nan_inf_filter=False)
InOrder(net, arguments, train_dataset=data).train()
"""
CALLBACK = TRAIN.replace("train_dataset=data)", "train_dataset=data, callbacks=[ProbeCallback()])").replace(
    "import sys, torch", "import sys, torch\nfrom probe.pytorch.callbacks.huggingface import ProbeCallback"
)


def numbers(folder: Path) -> dict[str, dict[int, str]]:
    """Numbers of the run in probe's own files, by name and step."""
    rows: dict[str, dict[int, str]] = {}
    for path in folder.glob("monitor_output/*/run_*.csv"):
        with path.open(encoding="utf-8") as file:
            for row in csv.DictReader(file):
                rows.setdefault(row["name"], {})[int(row["step"])] = row["value"]
    return rows


@pytest.mark.parametrize(("seed", "bad", "to"), [(0, 14, "wandb"), (2, 8, "")])
def test_the_layer_and_the_step_are_named(tmp_path: Path, seed: int, bad: int, to: str) -> None:
    """What the Trainer prints is in probe's own files, and the verdict is in the summary of the Trainer's W&B run."""
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "monitor.json").write_text(
        json.dumps({"format": ["csv", *filter(None, [to])], "sentinel": {"enable": True}})
    )
    own = {}
    if to:
        own = {"PYTHONPATH": f"{require_version('wandb-0.31.0')}{os.pathsep}{ROOT}", "WANDB_MODE": "offline"}
    options = ["-c", "monitor.json"]
    done = run(tmp_path, seed, bad, *filter(None, [to]), options=options, modules=user_scripts.TRAINERS, **own)
    assert done.returncode == 0, done.stderr
    head = card(done)[0]
    assert head == f"critical: loss-not-finite between layers.0 and layers.1.fc, step {bad}"
    assert re.search(
        r"watching Regression with AdamW; files in .*; attached by `probe run`$", done.stderr, re.MULTILINE
    )
    logs = [eval(line) for line in done.stdout.splitlines() if line.startswith("{'loss'")]
    files = numbers(tmp_path)
    for name in ("loss", "grad_norm"):
        printed = [float(log[name]) for log in logs]
        assert [float(value) for _, value in sorted(files[name].items())] == pytest.approx(
            printed, rel=1e-3, nan_ok=True
        )
    if to:
        summary = read_run(tmp_path / "wandb").summary
        kind, where, step = (summary[f"probe/verdict/{name}"] for name in ("kind", "where", "step"))
        assert (kind, where, step) == ("loss-not-finite", "layers.0, layers.1.fc", bad)


def test_a_callback_in_the_program_comes_first_and_is_named(tmp_path: Path) -> None:
    """`probe run` says that it attaches none beside it; numbers are recorded once."""
    (tmp_path / "train.py").write_text(CALLBACK)
    done = run(tmp_path, 3, 6, modules=user_scripts.TRAINERS)
    assert done.returncode == 0, done.stderr
    assert re.search(r"watching Regression .*attached by the program's callback$", done.stderr, re.MULTILINE)
    assert (
        "probe: info: `probe run` attaches no monitor: the model is watched already, by the program's own callback"
        in (done.stderr)
    )
    assert len([*tmp_path.glob("monitor_output/*/manifest.json")]) == 1
