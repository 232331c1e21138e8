"""Averaged weights are put into the model for a validation in the middle, and are not taken out again."""

from __future__ import annotations

import torch
from case import ONSET, Case, Run, watch
from common import CNN, image_loss, images, main, update
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

CASE = Case(
    sources=("https://github.com/fadel/pytorch_ema",),
    label="loop",
    kinds=("written-between-updates",),
    start=ONSET,
)


@torch.no_grad()
def validate(model: nn.Module, average: nn.Module, run: Run) -> None:
    """Compute the loss of the averaged weights, in the healthy twin by a model of their own."""
    if run.faulty:
        for parameter, value in zip(model.parameters(), average.parameters(), strict=True):
            parameter.copy_(value)
    image_loss(model if run.faulty else average, images(run.seed, 10_000))


def train(run: Run) -> None:
    """Train one twin."""
    model = CNN()
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.95))
    monitor = watch(model, optimizer)
    for step in range(run.steps):
        if step == ONSET:
            validate(model, average.module, run)
        loss = image_loss(model, images(run.seed, step))
        update(optimizer, loss)
        average.update_parameters(model)
        monitor.log(loss=loss)
    monitor.stop()


if __name__ == "__main__":
    main(CASE, train)
