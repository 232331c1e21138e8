"""GPT with tied weights and dropout; warm-up, cosine, clipping."""

from __future__ import annotations

import math

import torch
from data import GPT, arguments, report, text
from torch import nn
from torch.nn import functional

args = arguments()
model = GPT(tied=True, dropout=0.1)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)
scheduler = torch.optim.lr_scheduler.LambdaLR(
    optimizer, lambda step: min(1, step / 40) * (0.5 + 0.5 * math.cos(math.pi * min(1, step / args.steps)))
)
model.train()
for step in range(args.steps):
    tokens = text(args.seed, step)
    optimizer.zero_grad()
    logits = model(tokens[:, :-1])
    loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    report(step, loss)
