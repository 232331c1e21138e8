"""Training against perturbed inputs: gradients of inputs by ``autograd.grad``, three times an update."""

from __future__ import annotations

import torch
from data import CNN, arguments, images, report
from torch.nn import functional

args = arguments()
model = CNN()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
for step in range(args.steps):
    pictures, classes = images(args.seed, step)
    moved = pictures + torch.empty_like(pictures).uniform_(-0.1, 0.1)
    for _ in range(3):
        moved.requires_grad_(True)
        (slope,) = torch.autograd.grad(functional.cross_entropy(model(moved), classes), [moved])
        moved = (moved + 0.05 * slope.sign()).detach()
        moved = pictures + (moved - pictures).clamp(-0.1, 0.1)
    loss = functional.cross_entropy(model(moved), classes)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    report(step, loss)
