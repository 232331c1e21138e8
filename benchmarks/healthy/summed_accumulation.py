"""Accumulation over four micro batches with a loss that is summed over tokens, and a rate to match."""

from __future__ import annotations

import torch
from data import GPT, arguments, report, text
from torch import nn
from torch.nn import functional

args = arguments()
model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
for step in range(args.steps):
    optimizer.zero_grad()
    total = 0.0
    for micro_step in range(4):
        tokens = text(args.seed, 4 * step + micro_step, batch=2)
        logits = model(tokens[:, :-1]).flatten(0, 1)
        loss = functional.cross_entropy(logits, tokens[:, 1:].flatten(), reduction="sum")
        loss.backward()
        total += loss.item()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    report(step, total)
