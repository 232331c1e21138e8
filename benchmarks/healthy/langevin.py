"""Langevin dynamics: noise is added to the weights after each update, and weights decay by hand before it."""

from __future__ import annotations

import torch
from data import arguments, report, table
from torch import nn
from torch.nn import functional

args = arguments()
model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(args.steps):
    inputs, targets = table(args.seed, step)
    loss = functional.cross_entropy(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    for parameter in model.parameters():
        parameter.data.mul_(1 - 1e-4)
    optimizer.step()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=2e-3)
    report(step, loss)
