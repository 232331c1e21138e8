"""The model ends with a softmax, and the loss applies another."""

from __future__ import annotations

import torch
from case import Case, Run, watch
from common import CNN, image_loss, images, main, update
from torch import nn

CASE = Case(
    sources=(
        "https://karpathy.github.io/2019/04/25/recipe/",
        "https://twitter.com/karpathy/status/1013244313327681536",
    ),
    label="before",
    kinds=("softmax-twice",),
)


def train(run: Run) -> None:
    """Train one twin."""
    model = nn.Sequential(CNN(), nn.Softmax(1) if run.faulty else nn.Identity())
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    monitor = watch(model, optimizer)
    for step in range(run.steps):
        loss = image_loss(model, images(run.seed, step))
        update(optimizer, loss)
        monitor.log(loss=loss)
    monitor.stop()


if __name__ == "__main__":
    main(CASE, train)
