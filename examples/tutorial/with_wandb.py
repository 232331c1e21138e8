"""Trains a model that becomes NaN, with a run of W&B of its own, and has the layer named beside its loss.

python examples/tutorial/with_wandb.py
"""

import os
from pathlib import Path

import command_line
import torch
import wandb
from model import PADDING, SmallModel, batch
from pictures import curves, numbers
from torch.nn import functional

from probe.pytorch import TrainerMon

MONITOR = {
    "wg_distribution": True,
    "xy_distribution": True,
    "all_xy": True,
    "forward_only": True,
    "ops": ["norm", "zeros", "nans"],
    "format": ["csv", "wandb"],
    "step_count_per_record": 100,
}
EMPTY_SAMPLE = 23
"""The step at which one sequence consists of padding alone."""


def train(run: wandb.Run, monitor: TrainerMon) -> None:
    """Trains, and logs the loss at each step, as without a monitor."""
    model = SmallModel(eps=0.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    monitor.set_monitor(model, grad_acc_steps=1, optimizer=optimizer)
    for step in range(30):
        tokens, targets = batch(step)
        if step == EMPTY_SAMPLE:
            tokens[5] = PADDING
        loss = functional.cross_entropy(model(tokens), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log({"loss": loss.item()}, step=step)


def main() -> None:
    torch.manual_seed(0)
    os.environ.setdefault("WANDB_MODE", "offline")  # without an account
    os.environ["MONITOR_OUTPUT_DIR"] = "nightly"
    with wandb.init(project="tutorial") as run:
        with TrainerMon(MONITOR) as monitor:
            train(run, monitor)
        summary = dict(run.summary)

    print("the program's series:", *(name for name in summary if not name.startswith(("probe/", "_"))))
    print("probe's series:", len([name for name in summary if name.startswith("probe/")]))
    print("first cause:", summary["probe/first_cause"])

    norms = numbers(Path(monitor.output_directory), "actv", "norm")
    shown = ("layers.0.norm.output", "layers.2.act.output", "output.output")
    curves(Path("with_wandb.svg"), "Norm of outputs", {name: norms[name] for name in shown})

    command_line.run("track", "nightly", "--to", "wandb", "--layers", "layers.0.*", "--no-report")


if __name__ == "__main__":
    main()
