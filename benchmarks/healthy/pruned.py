"""Magnitude pruning in three stages, by masks that torch's own utilities place."""

from __future__ import annotations

import torch
from data import arguments, report, table
from torch import nn
from torch.nn import functional
from torch.nn.utils import prune

args = arguments()
model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(args.steps):
    if step in (100, 150, 200):
        for layer in (model[0], model[2]):
            prune.l1_unstructured(layer, "weight", amount=0.3)
    inputs, targets = table(args.seed, step)
    loss = functional.cross_entropy(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    report(step, loss)
