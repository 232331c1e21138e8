"""GPT whose layers are mixtures of four experts with a balancing loss."""

from __future__ import annotations

import torch
from data import GPT, arguments, report, text
from torch import Tensor, nn
from torch.nn import functional

EXPERTS = 4


class SparseMLP(nn.Module):
    """Layers of which a router chooses two for each token."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, EXPERTS, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width)) for _ in range(EXPERTS)
        )
        self.aux_loss = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        """Mix the two best experts of each token."""
        tokens = x.flatten(0, 1)
        chances = self.gate(tokens).softmax(-1)
        weights, chosen = chances.topk(2, dim=-1)
        result = torch.zeros_like(tokens)
        for n, expert in enumerate(self.experts):
            rows, column = (chosen == n).nonzero(as_tuple=True)
            if len(rows):
                result.index_add_(0, rows, weights[rows, column, None] * expert(tokens[rows]))
        share = functional.one_hot(chosen, EXPERTS).float().mean((0, 1))
        self.aux_loss = EXPERTS * (share * chances.mean(0)).sum()
        return result.view_as(x)


args = arguments()
model = GPT()
for layer in model.layers:
    layer.mlp = SparseMLP(48)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
for step in range(args.steps):
    tokens = text(args.seed, step)
    optimizer.zero_grad(set_to_none=True)
    loss = functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    total = loss + 0.01 * sum(layer.mlp.aux_loss for layer in model.layers)
    total.backward()
    optimizer.step()
    report(step, loss)
