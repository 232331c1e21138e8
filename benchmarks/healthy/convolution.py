"""Residual net with batch norm; SGD with momentum, a rate that falls in steps, evaluation now and then."""

from __future__ import annotations

import torch
from data import CLASSES, arguments, images, report
from torch import Tensor, nn
from torch.nn import functional


class BasicBlock(nn.Module):
    """Two convolutions with a shortcut."""

    def __init__(self, planes_in: int, planes: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(planes_in, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.shortcut = nn.Sequential(nn.Conv2d(planes_in, planes, 1, stride, bias=False), nn.BatchNorm2d(planes))

    def forward(self, x: Tensor) -> Tensor:
        """Add both branches."""
        out = functional.relu(self.bn1(self.conv1(x)))
        return functional.relu(self.bn2(self.conv2(out)) + self.shortcut(x))


args = arguments()
model = nn.Sequential(
    BasicBlock(3, 12, 1), BasicBlock(12, 24, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, CLASSES)
)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [args.steps // 2, 3 * args.steps // 4], gamma=0.1)
for step in range(args.steps):
    model.train()
    inputs, targets = images(args.seed, step)
    optimizer.zero_grad()
    loss = criterion(model(inputs), targets)
    loss.backward()
    optimizer.step()
    scheduler.step()
    report(step, loss)
    if step % 50 == 49:
        model.eval()
        with torch.no_grad():
            inputs, targets = images(args.seed, 10**6 + step)
            accuracy = (model(inputs).argmax(1) == targets).float().mean()
