"""Residual branches that begin at 0 (the last norm of each, a learned gate)."""

from __future__ import annotations

import torch
from data import CLASSES, arguments, images, report
from torch import Tensor, nn
from torch.nn import functional


class Branch(nn.Module):
    """Convolution behind a gate that begins at 0 (Bachlechner et al., 2020)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)
        self.gate = nn.Parameter(torch.zeros(1))
        nn.init.zeros_(self.bn.weight)
        nn.init.constant_(self.bn.bias, 0.1)

    def forward(self, x: Tensor) -> Tensor:
        """Add the branch."""
        return x + self.gate * functional.relu(self.bn(self.conv(x)))


args = arguments()
model = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), *(Branch(16) for _ in range(4)), nn.AdaptiveAvgPool2d(1), nn.Flatten())
model.append(nn.Linear(16, CLASSES))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(args.steps):
    inputs, targets = images(args.seed, step)
    loss = functional.cross_entropy(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    report(step, loss)
