"""Fine-tuning with batch norm kept in evaluation mode."""

from __future__ import annotations

import torch
from data import CLASSES, arguments, images, report
from torch import nn

args = arguments()
model = nn.Sequential(
    nn.Conv2d(3, 12, 3, padding=1),
    nn.BatchNorm2d(12),
    nn.ReLU(),
    nn.Conv2d(12, 24, 3, stride=2),
    nn.BatchNorm2d(24),
    nn.ReLU(),
)
model.append(nn.AdaptiveAvgPool2d(1)).append(nn.Flatten()).append(nn.Linear(24, CLASSES))
with torch.no_grad():  # statistics, as of pretraining
    for step in range(20):
        model(images(args.seed, 10**6 + step)[0])
for module in model:
    if isinstance(module, nn.BatchNorm2d):
        module.requires_grad_(False)
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05, momentum=0.9)
for step in range(args.steps):
    model.train()
    for module in model:
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    inputs, targets = images(args.seed, step)
    loss = nn.functional.cross_entropy(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    report(step, loss)
