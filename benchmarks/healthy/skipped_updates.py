"""The program skips an update whose gradients are unusually large, and adds noise to the others."""

from __future__ import annotations

import torch
from data import arguments, report, table
from torch import nn
from torch.nn import functional

args = arguments()
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
norms: list[float] = []
for step in range(args.steps):
    inputs, targets = table(args.seed, step)
    loss = functional.cross_entropy(model(inputs), targets)
    loss.backward()
    norm = float(nn.utils.clip_grad_norm_(model.parameters(), 5.0))
    if len(norms) < 20 or norm < 1.5 * sorted(norms[-20:])[10]:
        for parameter in model.parameters():
            parameter.grad += 1e-3 * torch.randn_like(parameter.grad)
        optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    norms.append(norm)
    report(step, loss)
