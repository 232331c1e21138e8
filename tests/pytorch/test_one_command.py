"""One command starts a GPT, a Trainer and a loop of MindSpore, as their users have them, under watch: a planted NaN is
named in the terminal and in the files of four trackers, and the charts of a program stay what they are."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from tests import user_scripts
from tests.core.trackers.read_back import mlflow_tag, of_trackio, swanlab_run
from tests.core.trackers.test_other_trackers import PACKAGES
from tests.core.trackers.wandb_file import WandbRun, read_runs
from tests.quick_python import probe_command, quick_python
from tests.required import require_installed, require_version

require_installed("torch", "transformers", "mindspore")

ROOT = Path(__file__).parents[2]
STEPS, BAD = 6, 4
"""Steps of each program, and the one in which a value is NaN."""
CONFIG = {
    "wg_distribution": True,
    "xy_distribution": True,
    "all_xy": True,
    "ops": ["norm", "nans"],
    "format": ["csv", *PACKAGES],
    "trackers": {"max_overhead": 1.0},
    "alert": {"grace_seconds": 300},
}
GPT = f"""
import torch, wandb
from torch.nn import functional

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.ln, self.fc = torch.nn.LayerNorm(8), torch.nn.Linear(8, 8)
    def forward(self, x):
        return x + self.fc(functional.gelu(self.ln(x)))

class GPT(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.transformer = torch.nn.ModuleDict(dict(wte=torch.nn.Embedding(16, 8), h=torch.nn.ModuleList([Block()])))
        self.lm_head = torch.nn.Linear(8, 16, bias=False)
        self.transformer.wte.weight = self.lm_head.weight
    def forward(self, tokens, targets, scale):
        x = self.transformer.wte(tokens) * scale
        for block in self.transformer.h:
            x = block(x)
        return functional.cross_entropy(self.lm_head(x).flatten(0, 1), targets.flatten())

torch.manual_seed(0)
model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
wandb.init(project="own")
for step in range({STEPS}):
    tokens = torch.randint(16, (4, 5))
    loss = model(tokens, tokens, float("nan") if step == {BAD} else 1.0)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    print(f"loss {{step}} {{loss.item()}}\\n", end="")  # in one go: trackers write to the same pipe
    wandb.log({{"train/loss": loss.item(), "iter": step}})
"""
TRAINER = f"""
import torch
from transformers import Trainer, TrainingArguments

class Points(torch.utils.data.Dataset):
    def __len__(self):
        return {STEPS} * 2
    def __getitem__(self, index):
        return {{"x": torch.full((3,), float("nan") if index // 2 == {BAD} else index / 8)}}

class Regression(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.head = torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)
    def forward(self, x, return_loss=True):
        return {{"loss": (self.head(self.fc(x)) - 1).square().mean()}}

class InOrder(Trainer):
    def _get_train_sampler(self, *args):
        return torch.utils.data.SequentialSampler(self.train_dataset)

arguments = TrainingArguments(
    output_dir="trainer", per_device_train_batch_size=2, max_steps={STEPS}, logging_steps=1, save_strategy="no",
    report_to=[], disable_tqdm=True, use_cpu=True, dataloader_pin_memory=False, seed=0,
)
InOrder(model=Regression(), args=arguments, train_dataset=Points()).train()
"""
LOOP = f"""
import numpy as np
import mindspore as ms
from mindspore import Tensor, nn
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(0)
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.fc, self.head = nn.Dense(4, 8), nn.Dense(8, 1)
    def construct(self, x):
        return self.head(ms.ops.relu(self.fc(x)))
net, loss = Net(), nn.MSELoss()
optimizer = nn.Adam(net.trainable_params(), 1e-2)
gradients = ms.value_and_grad(lambda a, b: loss(net(a), b), None, optimizer.parameters)
y = Tensor(np.zeros((16, 1), np.float32))
for step in range({STEPS}):
    value, found = gradients(Tensor(np.full((16, 4), np.nan if step == {BAD} else 1, np.float32)), y)
    optimizer(found)
"""
FIRST = {"gpt": "transformer.h.0.input", "trainer": ".input", "loop": ".input"}
"""The row of each program that is NaN first."""


class Watched(NamedTuple):
    """What the programs have left."""

    folder: Path
    printed: str
    errors: str


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Watched:
    """All of them, by one command."""
    folder = tmp_path_factory.mktemp("programs")
    for name, text in (("gpt", GPT), ("trainer", TRAINER), ("loop", LOOP)):
        (folder / f"{name}.py").write_text(text)
    (folder / "monitor.json").write_text(json.dumps(CONFIG))
    imported = {"gpt": user_scripts.TORCH, "trainer": user_scripts.TRAINERS, "loop": user_scripts.MINDSPORE}
    programs = [f"{quick_python(*modules)} {name}.py" for name, modules in imported.items()]
    (folder / "all.sh").write_text(" && ".join(programs) + "\n")
    own = {key: value for key, value in os.environ.items() if key != "MONITOR_OUTPUT_DIR"} | {
        "PYTHONPATH": os.pathsep.join(
            map(str, [ROOT, *(require_version(package) for package, *_ in PACKAGES.values())])
        ),
        "OMP_NUM_THREADS": "1",
        "GLOG_v": "4",
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.sqlite'}",
        "SWANLAB_MODE": "offline",
        "TRACKIO_DIR": str(folder / "trackio"),
    }
    command = probe_command("run", "-c", "monitor.json", "--", "bash", "all.sh", modules=user_scripts.TORCH)
    done = subprocess.run(command, cwd=folder, env=own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Watched(folder, done.stdout, done.stderr)


def wandb_run(watched: Watched, name: str) -> WandbRun:
    """The run of W&B to which a program belongs: they have trained one after the other."""
    return read_runs(watched.folder / "wandb")[[*FIRST].index(name)]


@pytest.mark.parametrize("name", FIRST)
def test_a_planted_nan_is_named_everywhere(watched: Watched, name: str) -> None:
    """In the terminal, by W&B, MLflow, SwanLab and Trackio: the place, the rank and the step."""
    module = FIRST[name].rpartition(".")[0]
    where = f"in module {module}" if module else "in the root module"
    found = f"NaN at step {BAD}, micro step 0: norm of {FIRST[name]} (module inputs and outputs) {where} is nan."
    assert f"probe: warning: First bad on rank 0: {found}\n" in watched.errors
    cause = f"NaN in {FIRST[name]}, step {BAD}: {found.rstrip('.')}"
    swanlab = {project: texts for _, texts, project in map(swanlab_run, watched.folder.glob("swanlog/*/*.swanlab"))}
    _, others, _ = of_trackio(watched.folder / "trackio", name)
    assert wandb_run(watched, name).summary["probe/first_cause"] == cause
    assert mlflow_tag(watched.folder / "mlflow.sqlite", "probe/first_cause")[name] == cause
    assert any(f"probe/first_cause: {cause}" in text for text in swanlab[name][".txt"])
    assert f"probe/first_cause: {cause}" in others["probe/summary"]


def test_nothing_was_lost_on_the_way(watched: Watched) -> None:
    """Also what is handed over last, at the exit of programs that do not know of it, before the trackers end."""
    assert "without it" not in watched.errors
    assert [run.summary["probe/findings/nrows"] > 0 for run in read_runs(watched.folder / "wandb")] == [True] * 3


def test_the_charts_of_a_program_are_what_they_are(watched: Watched) -> None:
    """Each of its values in its own run of W&B, at its own step; others are begun for the other programs."""
    printed = re.findall(r"loss (\d) (\S+)$", watched.printed, re.MULTILINE)
    rows = [row for row in wandb_run(watched, "gpt").rows if "train/loss" in row]
    assert [(row["_step"], row["iter"], repr(row["train/loss"])) for row in rows] == [
        (int(step), int(step), loss) for step, loss in printed
    ]
    assert len(printed) == STEPS
    assert [run.project for run in read_runs(watched.folder / "wandb")] == ["own", "trainer", "loop"]
