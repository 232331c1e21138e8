"""Gradients are never set to zero: each update applies the sum of all gradients so far."""

from __future__ import annotations

import torch
from case import Case, Run, watch
from common import CNN, image_loss, images, main

CASE = Case(
    sources=("https://stackoverflow.com/questions/60335387", "https://arxiv.org/abs/2506.14813"),
    label="loop",
    kinds=("stale-gradient",),
    start=1,
)


def train(run: Run) -> None:
    """Train one twin."""
    model = CNN()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    monitor = watch(model, optimizer)
    for step in range(run.steps):
        loss = image_loss(model, images(run.seed, step))
        if not run.faulty:
            optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        monitor.log(loss=loss)
    monitor.stop()


if __name__ == "__main__":
    main(CASE, train)
