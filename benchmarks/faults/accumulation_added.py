"""The losses of four micro batches are added and not averaged: the gradient is four times too large."""

from __future__ import annotations

import torch
from case import Case, Run, watch
from common import GPT, main, text, text_loss

CASE = Case(
    sources=(
        "https://github.com/huggingface/transformers/issues/35438",
        "https://github.com/huggingface/transformers/issues/37766",
    ),
    label="before",
    kinds=("undivided-accumulation",),
)


def train(run: Run) -> None:
    """Train one twin."""
    model = GPT()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    monitor = watch(model, optimizer, accumulation=4)
    for step in range(run.steps):
        optimizer.zero_grad()
        total = 0.0
        for micro_step in range(4):
            loss = text_loss(model, text(run.seed, 4 * step + micro_step, batch=2))
            (loss if run.faulty else loss / 4).backward()
            total += loss.item() / 4
        optimizer.step()
        monitor.log(loss=total)
    monitor.stop()


if __name__ == "__main__":
    main(CASE, train)
