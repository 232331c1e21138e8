"""A linear schedule counts batches where updates were meant: the rate is 0 for the second half."""

from __future__ import annotations

import torch
from case import ONSET, Case, Run, watch
from common import GPT, main, text, text_loss, update

CASE = Case(
    sources=(
        "https://huggingface.co/docs/transformers/main_classes/optimizer_schedules",
        "https://github.com/huggingface/accelerate/issues/2142",
    ),
    label="loop",
    kinds=("rate-zero",),
    start=ONSET,
)


def train(run: Run) -> None:
    """Train one twin."""
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    last = ONSET if run.faulty else run.steps
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / last))
    monitor = watch(model, optimizer)
    for step in range(run.steps):
        loss = text_loss(model, text(run.seed, step))
        update(optimizer, loss)
        schedule.step()
        monitor.log(loss=loss)
    monitor.stop()


if __name__ == "__main__":
    main(CASE, train)
