"""A checkpoint that is loaded in the middle has the optimizer's settings, but not its state."""

from __future__ import annotations

import torch
from case import ONSET, Case, Run, watch
from common import GPT, main, text, text_loss, update

CASE = Case(
    sources=(
        "https://docs.pytorch.org/tutorials/recipes/recipes/saving_and_loading_a_general_checkpoint.html",
        "https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.load_state_dict.html",
    ),
    label="loop",
    kinds=("state-restarted",),
    start=ONSET,
)


def train(run: Run) -> None:
    """Train one twin."""
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / (2 * run.steps))
    monitor = watch(model, optimizer)
    for step in range(run.steps):
        if step == ONSET:
            saved = optimizer.state_dict()
            optimizer.load_state_dict({**saved, "state": {}} if run.faulty else saved)
            schedule.load_state_dict(schedule.state_dict())
        loss = text_loss(model, text(run.seed, step))
        update(optimizer, loss)
        schedule.step()
        monitor.log(loss=loss)
    monitor.stop()


if __name__ == "__main__":
    main(CASE, train)
