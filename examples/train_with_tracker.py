"""A run of W&B and probe's numbers in it: ``python examples/train_with_tracker.py``.

The program logs its loss with ``step=``, as it would without probe. What probe finds waits for the next of these rows,
and moves no step. Without an account: ``WANDB_MODE=offline``.
"""

from __future__ import annotations

import torch
import wandb

from probe.pytorch import TrainerMon

CONFIG = {
    "format": ["csv", "wandb"],
    "step_count_per_record": 100,
    "wg_distribution": True,
    "ops": ["norm", "nans", "infs"],
}
STEPS = 20


def main() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    inputs = torch.randn(64, 16)
    targets = inputs.sum(1, keepdim=True)
    with wandb.init(project="examples") as run, TrainerMon(CONFIG) as monitor:
        monitor.set_monitor(model, grad_acc_steps=1, optimizer=optimizer)
        for step in range(STEPS):
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            monitor.log(loss=loss.detach())
            optimizer.step()
            optimizer.zero_grad()
            run.log({"loss": loss.item()}, step=step)


if __name__ == "__main__":
    main()
