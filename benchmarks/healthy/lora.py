"""Adapters of low rank on a frozen GPT: one factor begins at 0."""

from __future__ import annotations

import torch
from data import GPT, arguments, report, text
from torch import Tensor, nn
from torch.nn import functional


class LoRA(nn.Module):
    """Frozen linear map with a trained correction of rank 4."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_A = nn.Linear(base.in_features, 4, bias=False)
        self.lora_B = nn.Linear(4, base.out_features, bias=False)
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Add the correction."""
        return self.base(x) + 2 * self.lora_B(self.lora_A(x))


args = arguments()
model = GPT().requires_grad_(False)
for layer in model.layers:
    layer.attn.q, layer.attn.v = LoRA(layer.attn.q), LoRA(layer.attn.v)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
model.train()
for step in range(args.steps):
    tokens = text(args.seed, step)
    loss = functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    report(step, loss)
