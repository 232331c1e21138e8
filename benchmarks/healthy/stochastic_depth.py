"""Layers are left out at random, so that their parameters have no gradient in some steps."""

from __future__ import annotations

import torch
from data import arguments, report, table
from torch import nn
from torch.nn import functional

args = arguments()
blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(48), nn.Linear(48, 48), nn.GELU()) for _ in range(6))
model = nn.ModuleDict({"first": nn.Linear(32, 48), "blocks": blocks, "head": nn.Linear(48, 10)})
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(args.steps):
    inputs, targets = table(args.seed, step)
    hidden = model["first"](inputs)
    for depth, block in enumerate(blocks):
        if torch.rand(()) > 0.08 * depth:
            hidden = hidden + block(hidden)
    loss = functional.cross_entropy(model["head"](hidden), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    report(step, loss)
