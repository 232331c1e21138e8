"""Wasserstein GAN: five updates of a critic whose weights are clamped after each, then one of the generator."""

from __future__ import annotations

import torch
from data import arguments, report, table
from torch import nn

args = arguments()
generator = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 32))
critic = nn.Sequential(nn.Linear(32, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
of_generator = torch.optim.RMSprop(generator.parameters(), lr=5e-4)
of_critic = torch.optim.RMSprop(critic.parameters(), lr=5e-4)
for step in range(args.steps):
    for turn in range(5):
        rows, _ = table(args.seed, 5 * step + turn)
        of_critic.zero_grad()
        loss = critic(generator(torch.randn(32, 16)).detach()).mean() - critic(rows).mean()
        loss.backward()
        of_critic.step()
        with torch.no_grad():
            for parameter in critic.parameters():
                parameter.clamp_(-0.05, 0.05)
    of_generator.zero_grad()
    loss = -critic(generator(torch.randn(32, 16))).mean()
    loss.backward()
    of_generator.step()
    report(step, loss)
