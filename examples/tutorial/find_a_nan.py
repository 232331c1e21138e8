"""Trains a model whose norm divides by 0 at one step, and has `probe anomalies` name the layer and the step.

python examples/tutorial/find_a_nan.py
"""

import os
from pathlib import Path

import command_line
import torch
from model import PADDING, SmallModel, batch
from pictures import heatmap, numbers
from torch.nn import functional

from probe.pytorch import TrainerMon

MONITOR = {
    "wg_distribution": True,
    "param_distribution": True,
    "xy_distribution": True,
    "all_xy": True,
    "ops": ["norm", "zeros", "nans"],
    "format": ["csv"],
    "step_count_per_record": 100,
}
EMPTY_SAMPLE = 23
"""The step at which one sequence consists of padding alone."""


def train(output: str, eps: float, empty: str = "kept") -> Path:
    """Trains, and returns the directory that the monitor wrote."""
    os.environ["MONITOR_OUTPUT_DIR"] = output
    torch.manual_seed(0)
    model = SmallModel(eps)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    monitor = TrainerMon(MONITOR)
    monitor.set_monitor(model, grad_acc_steps=1, optimizer=optimizer)
    for step in range(30):
        tokens, targets = batch(step)
        if step == EMPTY_SAMPLE:
            tokens[5] = PADDING
        if empty == "dropped":
            full = (tokens != PADDING).any(1)
            tokens, targets = tokens[full], targets[full]
        loss = functional.cross_entropy(model(tokens), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step in (0, EMPTY_SAMPLE - 1, EMPTY_SAMPLE, EMPTY_SAMPLE + 1):
            print(f"{output}: step {step} loss {loss.item():.3f}")
    monitor.stop()
    return Path(monitor.output_directory)


def main() -> None:
    directory = train("broken", eps=0.0)
    command_line.run("anomalies", "broken", "-k", "4")

    norms = numbers(directory, "actv", "norm")
    heatmap(Path("find_a_nan.svg"), "Norm of inputs and outputs, in the order of execution", norms, range(18, 28))

    train("guarded", eps=1e-5)
    command_line.run("anomalies", "guarded")

    train("repaired", eps=1e-5, empty="dropped")
    command_line.run("anomalies", "repaired")


if __name__ == "__main__":
    main()
