"""Checkpoint in the middle that is loaded again, with optimizer, schedule and generators."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from data import arguments, images, report
from torch import nn

args = arguments()
model = nn.Sequential(
    nn.Conv2d(3, 12, 3, padding=1),
    nn.BatchNorm2d(12),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(2),
    nn.Flatten(),
    nn.Linear(48, 10),
)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
for step in range(args.steps):
    if step == args.steps // 2:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "checkpoint.pt"
            parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
            torch.save({name: part.state_dict() for name, part in parts.items()} | {"rng": torch.get_rng_state()}, path)
            checkpoint = torch.load(path)
        for name, part in parts.items():
            part.load_state_dict(checkpoint[name])
        torch.set_rng_state(checkpoint["rng"])
    inputs, targets = images(args.seed, step)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    scheduler.step()
    report(step, loss)
