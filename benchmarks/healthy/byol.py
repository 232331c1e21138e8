"""BYOL: two views, a predictor, and a target that is the moving average of the online net."""

from __future__ import annotations

import copy

import torch
from data import CNN, arguments, images, report
from torch import Tensor, nn
from torch.nn import functional


def projector(width: int) -> nn.Module:
    """Two layers with batch norm between them."""
    return nn.Sequential(nn.Linear(width, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 16))


def distance(one: Tensor, other: Tensor) -> Tensor:
    """Twice one minus the cosine."""
    return 2 - 2 * functional.cosine_similarity(one, other, dim=-1)


args = arguments()
online = nn.Sequential(CNN(), projector(10))
target = copy.deepcopy(online).requires_grad_(False)
predictor = projector(16)
learner = nn.ModuleDict({"online": online, "predictor": predictor})
optimizer = torch.optim.Adam(learner.parameters(), lr=1e-3)
for step in range(args.steps):
    pictures = images(args.seed, step, noise=0.5)[0]
    first, second = pictures + 0.3 * torch.randn_like(pictures), pictures.flip(-1) + 0.3 * torch.randn_like(pictures)
    with torch.no_grad():
        aims = target(second), target(first)
    views = predictor(online(first)), predictor(online(second))
    loss = sum(distance(view, aim).mean() for view, aim in zip(views, aims, strict=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for follower, parameter in zip(target.parameters(), online.parameters(), strict=True):
            follower.lerp_(parameter, 0.01)
    report(step, loss)
