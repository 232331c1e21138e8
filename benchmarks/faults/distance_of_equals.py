"""A batch has a pair of equal samples: their distance is 0, the gradient of its root is NaN, the loss is finite."""

from __future__ import annotations

import torch
from case import NOT_FINITE, ONSET, Case, Run, watch
from common import generator, main, update
from torch import nn

CASE = Case(
    sources=("https://github.com/pytorch/pytorch/issues/2534",),
    label="sentinel",
    kinds=NOT_FINITE,
    start=ONSET + 3,
)


def train(run: Run) -> None:
    """Train one twin."""
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    monitor = watch(model, optimizer)
    for step in range(run.steps):
        random = generator(run.seed, step)
        one = torch.randn(32, 32, generator=random)
        other, is_same = one.clone(), torch.rand(32, generator=random) < 0.5
        other += torch.where(is_same, 0.1, 2.0)[:, None] * torch.randn(32, 32, generator=random)
        if run.faulty and step == CASE.start:
            other[7] = one[7]
        distance = (model(one) - model(other)).pow(2).sum(1).sqrt()
        loss = torch.where(is_same, distance, (2 - distance).clamp(min=0)).pow(2).mean()
        update(optimizer, loss)
        monitor.log(loss=loss)
    monitor.stop()


if __name__ == "__main__":
    main(CASE, train)
