"""Two ranks: from the middle on the images of one are not scaled to unit size (an older version of its loader)."""

from __future__ import annotations

import torch
from case import LEAP, ONSET, Case, Run, watch
from common import CNN, image_loss, images, join, main, update
from torch.nn.parallel import DistributedDataParallel

CASE = Case(
    sources=("https://karpathy.github.io/2019/04/25/recipe/", "https://docs.pytorch.org/docs/stable/data.html"),
    label="ranks",
    kinds=("rank-unlike-peers", *LEAP, "bad batch"),
    start=ONSET,
    ranks=(1,),
    world=2,
)


def train(run: Run) -> None:
    """Train one twin."""
    rank = join()
    model = DistributedDataParallel(CNN(norm=False))
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    monitor = watch(model, optimizer)
    for step in range(run.steps):
        pictures, classes = images(run.seed, step, rank)
        is_raw = run.faulty and rank == 1 and step >= ONSET
        loss = image_loss(model, (64 * pictures if is_raw else pictures, classes))
        update(optimizer, loss)
        monitor.log(loss=loss)
    monitor.stop()


if __name__ == "__main__":
    main(CASE, train)
