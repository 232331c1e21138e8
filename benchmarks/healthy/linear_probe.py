"""Linear probe: a frozen encoder without gradients, and a head that trains."""

from __future__ import annotations

import torch
from data import CLASSES, arguments, report, table
from torch import nn

LONG = True
args = arguments()
encoder = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU())
encoder.requires_grad_(False).eval()
probe = nn.Linear(64, CLASSES)
optimizer = torch.optim.SGD(probe.parameters(), lr=0.1, momentum=0.9)
for step in range(args.steps):
    inputs, targets = table(args.seed, step)
    with torch.no_grad():
        features = encoder(inputs)
    loss = nn.functional.cross_entropy(probe(features), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    report(step, loss)
