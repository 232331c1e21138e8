"""Variational autoencoder: the weight of one term rises from 0, that of an auxiliary head falls to 0 and stays."""

from __future__ import annotations

import torch
from data import arguments, report, table
from torch import nn
from torch.nn import functional

args = arguments()
encoder = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16))
decoder = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 32))
auxiliary = nn.Linear(8, 10)
model = nn.ModuleList([encoder, decoder, auxiliary])
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(args.steps):
    inputs, targets = table(args.seed, step)
    mean, spread = encoder(inputs).chunk(2, dim=1)
    code = mean + torch.randn_like(mean) * (0.5 * spread).exp()
    divergence = -0.5 * (1 + spread - mean.square() - spread.exp()).sum(1).mean()
    loss = functional.mse_loss(decoder(code), inputs) + min(1.0, step / 200) * 0.1 * divergence
    loss = loss + max(0.0, 1 - step / 150) * functional.cross_entropy(auxiliary(mean), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    report(step, loss)
