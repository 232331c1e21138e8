"""Trains with a configuration of msprobe's Monitor as it is, and compares the files with those of msprobe itself.

python examples/tutorial/from_msprobe.py
"""

import json
import shutil
from pathlib import Path

import command_line
import torch
from model import SmallModel, batch
from pictures import heatmap, numbers
from torch.nn import functional

from probe.pytorch import TrainerMon  # before: from msprobe.pytorch import TrainerMon

HERE = Path(__file__).parent


def train(config: str) -> Path:
    """Trains, and returns the directory that the monitor wrote."""
    torch.manual_seed(0)
    model = SmallModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    monitor = TrainerMon(config, params_have_main_grad=False)
    monitor.set_monitor(model, grad_acc_steps=1, optimizer=optimizer)
    for step in range(4):
        tokens, targets = batch(step)
        loss = functional.cross_entropy(model(tokens), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    monitor.stop()
    return Path(monitor.output_directory)


def main() -> None:
    shutil.copy(HERE / "msprobe_monitor.json", "monitor.json")
    command_line.run("config", "check", "monitor.json")

    values = json.loads(Path("monitor.json").read_text(encoding="utf-8"))
    values["wg_distrbution"] = values.pop("wg_distribution")
    Path("misspelt.json").write_text(json.dumps(values, indent=4), encoding="utf-8")
    command_line.run("config", "check", "misspelt.json")

    directory = train("monitor.json")
    for path in sorted(directory.glob("*.csv")):
        print(path.name, "with", *path.read_text(encoding="utf-8").partition("\n")[0].split(","))

    shutil.copytree(HERE / "msprobe_output", "msprobe_output")
    command_line.run("compare", "msprobe_output", "monitor_output")
    gradients = numbers(directory, "grad_unreduced", "norm") | numbers(directory, "actv_grad", "norm")
    heatmap(Path("from_msprobe.svg"), "Norm of gradients, in the order of execution", gradients)


if __name__ == "__main__":
    main()
