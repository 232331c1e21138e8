"""From the middle on the images are bytes that nothing has scaled to unit size."""

from __future__ import annotations

import torch
from case import LEAP, ONSET, Case, Run, watch
from common import CNN, image_loss, images, main, update

CASE = Case(
    sources=("https://karpathy.github.io/2019/04/25/recipe/", "https://arxiv.org/abs/2204.02311"),
    label="sentinel",
    kinds=(*LEAP, "bad batch"),
    start=ONSET,
)


def train(run: Run) -> None:
    """Train one twin."""
    model = CNN(norm=False)
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    monitor = watch(model, optimizer)
    for step in range(run.steps):
        pictures, classes = images(run.seed, step)
        loss = image_loss(model, (255 * pictures if run.faulty and step >= ONSET else pictures, classes))
        update(optimizer, loss)
        monitor.log(loss=loss)
    monitor.stop()


if __name__ == "__main__":
    main(CASE, train)
