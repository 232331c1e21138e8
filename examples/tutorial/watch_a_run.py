"""Trains a small model with the monitor attached, and looks at what it wrote.

python examples/tutorial/watch_a_run.py
"""

from pathlib import Path

import command_line
import torch
from model import SmallModel, batch
from pictures import curves, heatmap, numbers, rows
from torch.nn import functional

from probe.pytorch import TrainerMon  # on MindSpore: from probe.mindspore import TrainerMon

MONITOR = {
    "wg_distribution": True,
    "xy_distribution": True,
    "all_xy": True,
    "forward_only": True,
    "ops": ["norm", "mean", "max", "nans"],
    "format": ["csv"],
    "step_count_per_record": 100,
}
STEPS = 60


def train() -> Path:
    """Trains, and returns the directory that the monitor wrote."""
    torch.manual_seed(0)
    model = SmallModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    monitor = TrainerMon(MONITOR)
    monitor.set_monitor(model, grad_acc_steps=1, optimizer=optimizer)

    for step in range(STEPS):
        tokens, targets = batch(step)
        loss = functional.cross_entropy(model(tokens), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0 or step == STEPS - 1:
            print(f"step {step} loss {loss.item():.3f} findings {len(monitor.findings)}")

    monitor.stop()
    return Path(monitor.output_directory)


def main() -> None:
    directory = train()
    print("files:", *sorted(path.name for path in directory.iterdir()))

    first = next(rows(directory, "grad_reduced"))
    print("first row:", *(f"{column}={value}" for column, value in first.items()))

    gradients = numbers(directory, "grad_reduced", "norm")
    heatmap(Path("watch_a_run_gradients.svg"), "Norm of each reduced gradient", gradients)

    outputs = numbers(directory, "actv", "norm")
    blocks = {name: line for name, line in outputs.items() if name.endswith("fc2.output")}
    curves(Path("watch_a_run_outputs.svg"), "Norm of the output of each block", blocks)

    command_line.run("report", "monitor_output", "-o", "report.html")


if __name__ == "__main__":
    main()
