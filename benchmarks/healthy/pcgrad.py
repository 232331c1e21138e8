"""Two tasks whose gradients are taken apart, projected where they conflict, and set by hand."""

from __future__ import annotations

import torch
from data import arguments, generator, report, table
from torch import nn
from torch.nn import functional

LONG = True
args = arguments()
trunk = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
model = nn.ModuleDict({"trunk": trunk, "classes": nn.Linear(64, 10), "sum": nn.Linear(64, 1)})
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
random = generator(args.seed)
direction = torch.randn(32, 1, generator=random)
for step in range(args.steps):
    inputs, targets = table(args.seed, step)
    features = trunk(inputs)
    losses = [
        functional.cross_entropy(model["classes"](features), targets),
        functional.mse_loss(model["sum"](features), (inputs @ direction).tanh()),
    ]
    gradients = []
    for value in losses:
        optimizer.zero_grad()
        value.backward(retain_graph=True)
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
        gradients.append(torch.cat([part.flatten() for part in parts]))
    first, second = gradients
    if (product := first @ second) < 0:
        first, second = first - product / (second @ second) * second, second - product / (first @ first) * first
    start, total = 0, first + second
    for p in model.parameters():
        p.grad = total[start : start + p.numel()].view_as(p).clone()
        start += p.numel()
    optimizer.step()
    report(step, losses[0] + losses[1])
