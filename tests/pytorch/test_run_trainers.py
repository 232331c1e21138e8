"""``probe run``: programs with a trainer, as they are, watched as by the three lines."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent

import pytest

from tests import user_scripts
from tests.forks import ForkServer
from tests.pytorch.run_scripts import ATTACH, SUM, Script, ran, steps_of
from tests.required import require

for package in ("torch", "transformers", "accelerate", "lightning"):
    require(package)

NET = "torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 1))"
TRAINER = Script(
    f"""
import torch
from transformers import Trainer, TrainingArguments
torch.manual_seed(1)
class Regression(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = {NET}
    def forward(self, x, labels):
        found = self.layers(x)
        return {{"loss": (found - labels).pow(2).mean(), "logits": found}}
net = Regression()
data = [{{"x": torch.randn(4), "labels": torch.randn(1)}} for _ in range(24)]
arguments = TrainingArguments("trainer", per_device_train_batch_size=4, gradient_accumulation_steps=2,
    num_train_epochs=2, eval_strategy="epoch", save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True)
trainer = Trainer(net, arguments, train_dataset=data, eval_dataset=data[:8])
trainer.create_optimizer()
# here
trainer.train()
"""
    + SUM.format("net"),
    optimizer="trainer.optimizer",
)
ACCELERATE = Script(
    f"""
import torch
from accelerate import Accelerator
torch.manual_seed(2)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
net = {NET}
optimizer = torch.optim.AdamW(net.parameters(), 0.01)
net, optimizer, data = accelerator.prepare(net, optimizer, torch.utils.data.DataLoader(torch.randn(24, 4), 4))
# here
for epoch in range(2):
    net.train()
    for x in data:
        with accelerator.accumulate(net):
            accelerator.backward(net(x).pow(2).mean())
            optimizer.step()
            optimizer.zero_grad()
    net.eval()
    with torch.no_grad():
        net(torch.ones(1, 4))
"""
    + SUM.format("net"),
    optimizer="optimizer.optimizer",
)
LIGHTNING = Script(
    f"""
import torch
import lightning.pytorch as lightning
torch.manual_seed(3)
class Regression(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = {NET}
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 0.01)
    def on_train_start(self):
        # here
        pass
    def training_step(self, batch, index):
        return self.layers(batch).pow(2).mean()
    def validation_step(self, batch, index):
        self.layers(batch)
net = Regression()
data = torch.utils.data.DataLoader(torch.randn(24, 4), 4)
trainer = lightning.Trainer(max_epochs=2, accumulate_grad_batches=2, accelerator="cpu", logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
trainer.fit(net, data, data)
"""
    + SUM.format("net"),
    model="self",
    optimizer="self.optimizers().optimizer",
)


@pytest.fixture(scope="module")
def forks() -> ForkServer:
    """A process that has imported the trainers and the monitor."""
    return user_scripts.forks(*user_scripts.TRAINERS)


@pytest.mark.parametrize("script", [TRAINER, ACCELERATE, LIGHTNING], ids=["transformers", "accelerate", "lightning"])
def test_rows_are_those_of_the_three_lines(forks: ForkServer, tmp_path: Path, script: Script) -> None:
    """With accumulation, and evaluations, which have no rows; the sum of the weights is that without the monitor.
    Numbers of the run come on top where a callback is installed."""
    lines = ATTACH.format(model=script.model, optimizer=script.optimizer, begun=0)
    attached = script.text.replace("        # here\n", indent(lines, " " * 8)).replace("# here\n", lines)
    by_hand = ran(forks, tmp_path / "hand", attached, watch=False)
    alone = ran(forks, tmp_path / "alone", script.text, watch=True)
    plain = ran(forks, tmp_path / "plain", script.text, watch=False)
    assert (alone.code, by_hand.code, plain.code) == (0, 0, 0), alone.errors + by_hand.errors
    last = [each.printed.splitlines()[-1] for each in (alone, by_hand, plain)]
    assert last[0] == last[1] == last[2]
    assert float(last[0])
    assert {name: text for name, text in alone.rows.items() if not name.startswith("run_")} == by_hand.rows
    assert steps_of(alone) == [[*range(6)]]
    assert "probe: info: 6 steps watched, " in alone.errors  # and what was looked at, not a count of findings
