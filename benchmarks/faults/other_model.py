"""The optimizer holds the parameters of a copy of the model: what is trained never moves."""

from __future__ import annotations

import copy

import torch
from case import Case, Run, watch
from common import CNN, image_loss, images, main

CASE = Case(
    sources=(
        "https://docs.pytorch.org/docs/stable/optim.html#constructing-it",
        "https://discuss.pytorch.org/t/84911",
    ),
    label="loop",
    kinds=("nothing-moves", "parameters-replaced", "frozen parameter"),
)


def train(run: Run) -> None:
    """Train one twin."""
    model = CNN()
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    if run.faulty:
        model = copy.deepcopy(model)
    monitor = watch(model, optimizer)
    for step in range(run.steps):
        loss = image_loss(model, images(run.seed, step))
        model.zero_grad()
        loss.backward()
        optimizer.step()
        monitor.log(loss=loss)
    monitor.stop()


if __name__ == "__main__":
    main(CASE, train)
