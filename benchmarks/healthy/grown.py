"""A net that grows by a layer twice; the new layers join the optimizer as groups, and the rate warms up again."""

from __future__ import annotations

import torch
from data import arguments, report, table
from torch import nn
from torch.nn import functional

args = arguments()
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(args.steps):
    if step in (120, 200):
        layer = nn.Linear(64, 64)
        nn.init.eye_(layer.weight)
        nn.init.zeros_(layer.bias)
        model.insert(len(model) - 1, layer)
        model.insert(len(model) - 1, nn.ReLU())
        optimizer.add_param_group({"params": layer.parameters()})
    for group in optimizer.param_groups:
        group["lr"] = 1e-3 * min(1.0, (step % 120 + 1) / 20)
    inputs, targets = table(args.seed, step)
    loss = functional.cross_entropy(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    report(step, loss)
