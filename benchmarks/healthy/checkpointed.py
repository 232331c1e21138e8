"""Blocks that run again in the backward, with dropout."""

from __future__ import annotations

import torch
from data import GPT, arguments, report, text
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


class Checkpointed(GPT):
    """GPT that keeps only the inputs of its blocks."""

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of each next token."""
        x = self.embed(tokens) + self.pos(torch.arange(tokens.shape[1]))
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return self.head(self.norm(x))


args = arguments()
model = Checkpointed(dropout=0.1)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
model.train()
for step in range(args.steps):
    tokens = text(args.seed, step)
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    report(step, loss)
