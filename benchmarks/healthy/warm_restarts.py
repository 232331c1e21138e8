"""Warm-up from a rate of 0, then cosine with restarts."""

from __future__ import annotations

import torch
from data import GPT, arguments, report, text
from torch.nn import functional
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, LambdaLR, SequentialLR

args = arguments()
model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
warm_up = LambdaLR(optimizer, lambda step: step / 30)
restarts = CosineAnnealingWarmRestarts(optimizer, T_0=60, T_mult=2)
scheduler = SequentialLR(optimizer, [warm_up, restarts], milestones=[30])
for step in range(args.steps):
    tokens = text(args.seed, step)
    loss = functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    report(step, loss)
