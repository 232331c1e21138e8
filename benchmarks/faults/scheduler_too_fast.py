"""Two ranks of Accelerate: the prepared schedule steps once for each process, so the rate falls and rises again."""

from __future__ import annotations

import math
from typing import Any

import torch
from case import Case, Run, watch
from common import GPT, main, text, text_loss

CASE = Case(
    sources=(
        "https://github.com/huggingface/accelerate/issues/2926",
        "https://github.com/huggingface/accelerate/issues/2142",
        "https://github.com/huggingface/transformers/issues/24088",
    ),
    label="twin",
    kinds=("schedule-ahead",),
    world=2,
)


def train(run: Run) -> None:
    """Train one twin."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model: Any = GPT()
    optimizer: Any = torch.optim.AdamW(model.parameters(), 2e-3)
    schedule: Any = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1, (step + 1) / 10) * (0.5 + 0.5 * math.cos(math.pi * step / run.steps))
    )
    model, optimizer = accelerator.prepare(model, optimizer)
    if run.faulty:
        schedule = accelerator.prepare(schedule)
    monitor = watch(model, optimizer)
    for step in range(run.steps):
        loss = text_loss(model, text(run.seed, step, accelerator.process_index))
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        schedule.step()
        monitor.log(loss=loss)
    monitor.stop()
    accelerator.end_training()


if __name__ == "__main__":
    main(CASE, train)
