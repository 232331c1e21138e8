"""A recurrent net whose hidden state goes on from batch to batch, cut off from the graph, and reset now and then."""

from __future__ import annotations

import torch
from data import VOCABULARY, arguments, report, text
from torch import nn
from torch.nn import functional

args = arguments()
model = nn.ModuleDict(
    {
        "embed": nn.Embedding(VOCABULARY, 32),
        "cell": nn.LSTM(32, 48, batch_first=True),
        "head": nn.Linear(48, VOCABULARY),
    }
)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
state = None
for step in range(args.steps):
    tokens = text(args.seed, step)
    hidden, state = model["cell"](model["embed"](tokens[:, :-1]), None if step % 20 == 0 else state)
    state = tuple(part.detach() for part in state)
    loss = functional.cross_entropy(model["head"](hidden).flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(model.parameters(), 0.5)
    optimizer.step()
    report(step, loss)
