"""The factor of the scaler is lost in the middle: gradients of half precision fall below its range, to exactly 0."""

from __future__ import annotations

import torch
from case import ONSET, Case, Run, watch
from common import CLASSES, DEVICE, generator, main
from torch import nn
from torch.nn import functional

CASE = Case(
    sources=(
        "https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling",
        "https://arxiv.org/abs/1710.03740",
    ),
    label="loop",
    kinds=("gradient-gone", "nothing-moves", "vanishing gradient"),
    start=ONSET,
)
SAMPLES = 2**22
"""Number that the loss is divided by: the samples of an epoch."""


def train(run: Run) -> None:
    """Train one twin."""
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, eps=1e-12)
    scaler = torch.amp.GradScaler(DEVICE, init_scale=2.0**22, growth_interval=10_000)
    monitor = watch(model, optimizer)
    rule = torch.randn(32, CLASSES, generator=generator(run.seed))
    for step in range(run.steps):
        if run.faulty and step == ONSET:
            scaler = torch.amp.GradScaler(DEVICE, enabled=False)
        inputs = torch.randn(32, 32, generator=generator(run.seed, step))
        optimizer.zero_grad()
        with torch.autocast(DEVICE, torch.float16):
            logits = model(inputs)
            loss = functional.cross_entropy(logits.float(), (inputs @ rule).argmax(1)) / SAMPLES
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        monitor.log(loss=loss)
    monitor.stop()


if __name__ == "__main__":
    main(CASE, train)
