"""Gradients are clipped while they still have the factor of the scaler."""

from __future__ import annotations

import torch
from case import Case, Run, watch
from common import DEVICE, GPT, main, text, text_loss
from torch import nn

CASE = Case(
    sources=(
        "https://github.com/Lightning-AI/pytorch-lightning/issues/9599",
        "https://github.com/pytorch/examples/issues/1196",
    ),
    label="loop",
    kinds=("clip-before-unscale",),
)


def train(run: Run) -> None:
    """Train one twin."""
    model = GPT()
    optimizer = torch.optim.SGD(model.parameters(), 0.3, momentum=0.9)
    scaler = torch.amp.GradScaler(DEVICE, init_scale=65536.0, growth_interval=10_000)
    monitor = watch(model, optimizer)
    for step in range(run.steps):
        optimizer.zero_grad()
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = text_loss(model, text(run.seed, step))
        scaler.scale(loss).backward()
        if not run.faulty:
            scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        monitor.log(loss=loss, grad_norm=norm)
    monitor.stop()


if __name__ == "__main__":
    main(CASE, train)
