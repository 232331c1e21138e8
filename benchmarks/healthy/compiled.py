"""Compiled model."""

from __future__ import annotations

import torch
from data import arguments, report, table
from torch import nn

args = arguments()
model = torch.compile(
    nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 10)), backend="aot_eager"
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(args.steps):
    inputs, targets = table(args.seed, step)
    loss = nn.functional.cross_entropy(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    report(step, loss)
