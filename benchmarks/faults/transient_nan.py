"""Three batches have NaN in an image; a scaler skips their updates, and the loss looks as before."""

from __future__ import annotations

import math

import torch
from case import NOT_FINITE, Case, Run, watch
from common import CNN, DEVICE, image_loss, images, main

CASE = Case(
    sources=("https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling",),
    label="sentinel",
    kinds=NOT_FINITE,
    start=121,
    steps=200,
)


def train(run: Run) -> None:
    """Train one twin."""
    model = CNN(norm=False)
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    scaler = torch.amp.GradScaler(DEVICE, init_scale=1024.0, growth_interval=10_000)
    monitor = watch(model, optimizer)
    for step in range(run.steps):
        pictures, classes = images(run.seed, step)
        if run.faulty and CASE.start <= step < CASE.start + 3:
            pictures[5, 0, 3, 3] = math.nan
        optimizer.zero_grad()
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = image_loss(model, (pictures, classes))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        monitor.log(loss=loss)
    monitor.stop()


if __name__ == "__main__":
    main(CASE, train)
