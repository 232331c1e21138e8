"""Weights are exchanged for their moving average for each evaluation, and put back afterwards."""

from __future__ import annotations

import torch
from data import GPT, arguments, report, text
from torch.nn import functional

args = arguments()
model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
average = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
for step in range(args.steps):
    tokens = text(args.seed, step)
    loss = functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            average[name].lerp_(parameter, 0.05)
    if step % 70 == 69:
        kept = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        model.load_state_dict(average, strict=False)
        model.eval()
        with torch.no_grad():
            model(text(args.seed, 0)[:, :-1])
        model.train()
        model.load_state_dict(kept, strict=False)
    report(step, loss)
