"""WGAN with gradient penalty: five updates of the critic for each of the generator."""

from __future__ import annotations

import torch
from data import arguments, generator, report
from torch import autograd, nn

args = arguments()
generator_net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
critic = nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
critic_optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.9))
generator_optimizer = torch.optim.Adam(generator_net.parameters(), lr=1e-3, betas=(0.5, 0.9))
random = generator(args.seed)
for step in range(args.steps):
    angle = 6.2832 * torch.randint(0, 8, (64,), generator=random) / 8
    real = torch.stack([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(64, 2, generator=random)
    fake = generator_net(torch.randn(64, 8)).detach()
    critic.zero_grad()
    share = torch.rand(64, 1)
    between = (share * real + (1 - share) * fake).requires_grad_()
    gradient = autograd.grad(critic(between).sum(), between, create_graph=True)[0]
    penalty = 10 * ((gradient.norm(2, dim=1) - 1) ** 2).mean()
    loss = critic(fake).mean() - critic(real).mean() + penalty
    loss.backward()
    critic_optimizer.step()
    report(step, loss)
    if step % 5 == 4:
        generator_net.zero_grad()
        (-critic(generator_net(torch.randn(64, 8))).mean()).backward()
        generator_optimizer.step()
