"""Denoising diffusion with a moving average of the weights; the loss depends on the drawn noise level."""

from __future__ import annotations

import copy

import torch
from data import arguments, images, report
from torch import nn

args = arguments()
model = nn.Sequential(nn.Conv2d(2, 24, 3, padding=1), nn.SiLU(), nn.Conv2d(24, 24, 3, padding=1), nn.SiLU())
model.append(nn.Conv2d(24, 1, 3, padding=1))
nn.init.zeros_(model[-1].weight)
average = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(args.steps):
    pictures = images(args.seed, step)[0][:, :1]
    level = torch.rand(len(pictures), 1, 1, 1)
    noise = torch.randn_like(pictures)
    noisy = (1 - level).sqrt() * pictures + level.sqrt() * noise
    loss = (model(torch.cat([noisy, level.expand_as(noisy)], dim=1)) - noise).square().mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    with torch.no_grad():
        for follower, parameter in zip(average.parameters(), model.parameters(), strict=True):
            follower.lerp_(parameter, 0.01)
    report(step, loss)
