"""Fine-tuning that unfreezes one more block at each stage, and gives it to the optimizer."""

from __future__ import annotations

import torch
from data import GPT, arguments, report, text
from torch.nn import functional

args = arguments()
model = GPT(layers=3).requires_grad_(False)
model.head.requires_grad_(True)
model.norm.requires_grad_(True)
optimizer = torch.optim.AdamW([*model.head.parameters(), *model.norm.parameters()], lr=2e-3)
stages = {args.steps * (n + 1) // 4: layer for n, layer in enumerate(reversed(model.layers))}
for step in range(args.steps):
    if step in stages:
        stages[step].requires_grad_(True)
        optimizer.add_param_group({"params": list(stages[step].parameters()), "lr": 1e-3})
    tokens = text(args.seed, step)
    loss = functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    report(step, loss)
