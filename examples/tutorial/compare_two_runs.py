"""Trains the same model twice, with two formulas for GELU, and has `probe compare` name the first difference.

python examples/tutorial/compare_two_runs.py
"""

import os
from pathlib import Path

import command_line
import torch
from model import SmallModel, batch
from pictures import curves, numbers
from torch.nn import functional

from probe.pytorch import TrainerMon

MONITOR = {
    "wg_distribution": True,
    "param_distribution": True,
    "xy_distribution": True,
    "all_xy": True,
    "ops": ["norm", "mean", "min", "max"],
    "format": ["csv"],
    "step_count_per_record": 100,
}


def train(gelu: str, output: str) -> Path:
    """Trains, and returns the directory that the monitor wrote."""
    os.environ["MONITOR_OUTPUT_DIR"] = output
    torch.manual_seed(0)
    model = SmallModel(gelu=gelu)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    monitor = TrainerMon(MONITOR)
    monitor.set_monitor(model, grad_acc_steps=1, optimizer=optimizer)
    for step in range(40):
        tokens, targets = batch(step)
        loss = functional.cross_entropy(model(tokens), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{output}: loss {loss.item():.6f}")
    monitor.stop()
    return Path(monitor.output_directory)


def main() -> None:
    yesterday = train(gelu="none", output="yesterday")
    train(gelu="none", output="again")
    command_line.run("compare", "yesterday", "again", "--rtol", "0")

    today = train(gelu="tanh", output="today")
    command_line.run("compare", "yesterday", "today", "--rtol", "1e-5", "--top", "3")

    here, there = (numbers(directory, "actv", "norm") for directory in (yesterday, today))
    differences = {
        name: {step: abs(value - there[name][step]) / value for step, value in line.items()}
        for name, line in here.items()
        if name in ("layers.0.fc1.output", "layers.0.act.output", "layers.2.act.output", "output.output")
    }
    curves(Path("compare_two_runs.svg"), "Relative difference of norms between the two runs", differences)


if __name__ == "__main__":
    main()
