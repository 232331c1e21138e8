"""Weights behind spectral and weight normalization, with one optimizer for the matrices and one for the rest."""

from __future__ import annotations

import torch
from data import arguments, images, report
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations

args = arguments()
model = nn.Sequential(
    parametrizations.spectral_norm(nn.Conv2d(3, 16, 3, stride=2)),
    nn.LeakyReLU(0.1),
    parametrizations.weight_norm(nn.Conv2d(16, 32, 3, stride=2)),
    nn.LeakyReLU(0.1),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(32, 10),
)
matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
others = [parameter for parameter in model.parameters() if parameter.dim() < 2]
optimizers = [torch.optim.SGD(matrices, lr=0.05, momentum=0.9), torch.optim.AdamW(others, lr=1e-3)]
for step in range(args.steps):
    pictures, classes = images(args.seed, step)
    loss = functional.cross_entropy(model(pictures), classes)
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
    report(step, loss)
