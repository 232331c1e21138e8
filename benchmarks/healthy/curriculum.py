"""Short sequences over few tokens first, then long ones over all, then noisy ones."""

from __future__ import annotations

import torch
from data import GPT, VOCABULARY, arguments, generator, report, text
from torch.nn import functional

args = arguments()
model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(args.steps):
    phase = 3 * step // args.steps
    tokens = text(args.seed, step, batch=(32, 8, 8)[phase], length=(9, 33, 33)[phase])
    if phase == 0:
        tokens %= 8
    if phase == 2:
        random = generator(args.seed, step, 1)
        noise = torch.randint(0, VOCABULARY, tokens.shape, generator=random)
        tokens = torch.where(torch.rand(tokens.shape, generator=random) < 0.3, noise, tokens)
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    report(step, loss)
