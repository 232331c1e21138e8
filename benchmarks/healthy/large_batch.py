"""SGD with large batches and a linear warm-up to a high rate."""

from __future__ import annotations

import torch
from data import CNN, arguments, images, report
from torch.nn import functional

args = arguments()
model = CNN()
optimizer = torch.optim.SGD(model.parameters(), lr=0.8, momentum=0.9, nesterov=True)
for step in range(args.steps):
    for group in optimizer.param_groups:
        group["lr"] = 0.8 * min(1, (step + 1) / 50)
    inputs, targets = images(args.seed, step, batch=128)
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    report(step, loss)
