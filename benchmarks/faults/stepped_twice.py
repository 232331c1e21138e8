"""The loop updates, and so does what it calls: each gradient is applied twice."""

from __future__ import annotations

import torch
from case import Case, Run, watch
from common import GPT, main, text, text_loss, update

CASE = Case(
    sources=(
        "https://lightning.ai/docs/pytorch/stable/model/manual_optimization.html",
        "https://arxiv.org/abs/2506.14813",
    ),
    label="loop",
    kinds=("update-without-backward", "stale-gradient"),
    start=1,
)


def train(run: Run) -> None:
    """Train one twin."""
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    monitor = watch(model, optimizer)
    for step in range(run.steps):
        loss = text_loss(model, text(run.seed, step))
        update(optimizer, loss)
        if run.faulty:
            optimizer.step()
        monitor.log(loss=loss)
    monitor.stop()


if __name__ == "__main__":
    main(CASE, train)
