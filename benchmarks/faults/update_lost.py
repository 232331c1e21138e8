"""A kernel writes to a copy where a tensor is not contiguous: the encoder never moves, nor its second moment."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from case import Case, Run, watch
from common import generator, main, update
from torch import nn
from torch.nn import functional

CASE = Case(
    sources=("https://elanapearl.github.io/blog/2025/the-bug-that-taught-me-pytorch/",),
    label="rows",
    kinds=("frozen parameter", "parameter-stuck", "written-between-updates"),
    where=("*encoder.weight*",),
)


class Lossy(torch.optim.Adam):
    """Optimizer whose results for the first parameter are lost."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """Update all parameters but the first."""
        weight = self.param_groups[0]["params"][0]
        before = weight.clone()
        super().step(closure)
        weight.copy_(before)
        self.state[weight]["exp_avg_sq"].zero_()


def train(run: Run) -> None:
    """Train one twin."""
    encoder, decoder = nn.Linear(48, 192), nn.Linear(192, 48)
    model = nn.Sequential(OrderedDict(encoder=encoder, relu=nn.ReLU(), decoder=decoder))
    optimizer = (Lossy if run.faulty else torch.optim.Adam)(model.parameters(), 2e-3)
    monitor = watch(model, optimizer)
    basis = torch.randn(96, 48, generator=generator(run.seed))
    for step in range(run.steps):
        inputs = (torch.rand(64, 96, generator=generator(run.seed, step)) < 0.05).float() @ basis
        loss = functional.mse_loss(model(inputs), inputs)
        update(optimizer, loss)
        monitor.log(loss=loss)
    monitor.stop()


if __name__ == "__main__":
    main(CASE, train)
