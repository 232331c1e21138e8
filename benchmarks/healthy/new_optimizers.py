"""A new optimizer for each epoch of 50 updates, and a return to the best weights where the evaluation got worse."""

from __future__ import annotations

import copy

import torch
from data import arguments, report, table
from torch import nn
from torch.nn import functional

args = arguments()
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10))
best, least = copy.deepcopy(model.state_dict()), float("inf")
for epoch in range(-(-args.steps // 50)):
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3 / (1 + epoch))
    for step in range(50 * epoch, min(args.steps, 50 * epoch + 50)):
        inputs, targets = table(args.seed, step)
        loss = functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        report(step, loss)
    model.eval()
    with torch.no_grad():
        inputs, targets = table(args.seed, 100_000 + epoch)
        measured = functional.cross_entropy(model(inputs), targets).item()
    if measured < least:
        best, least = copy.deepcopy(model.state_dict()), measured
    else:
        model.load_state_dict(best)
    model.train()
