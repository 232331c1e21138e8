"""One layer of a model under autocast computes in float32, because autocast is not applied to it."""

from __future__ import annotations

import torch
from case import Case, Run, watch
from common import DEVICE, GPT, main, text, text_loss, update
from torch import Tensor, nn
from torch.nn import functional

CASE = Case(
    sources=("https://github.com/Lightning-AI/lightning-thunder/issues/725", "https://arxiv.org/abs/2506.14813"),
    label="loop",
    kinds=("dtype-unlike",),
    where=("*layers.1.mlp.up*",),
)


class Plain(nn.Linear):
    """Layer without autocast."""

    def forward(self, x: Tensor) -> Tensor:
        """Multiply in float32."""
        with torch.autocast(DEVICE, enabled=False):
            return functional.linear(x.float(), self.weight, self.bias)


def train(run: Run) -> None:
    """Train one twin."""
    model = GPT()
    if run.faulty:
        model.layers[1].mlp.up.__class__ = Plain
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    monitor = watch(model, optimizer)
    for step in range(run.steps):
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = text_loss(model, text(run.seed, step))
        update(optimizer, loss)
        monitor.log(loss=loss)
    monitor.stop()


if __name__ == "__main__":
    main(CASE, train)
