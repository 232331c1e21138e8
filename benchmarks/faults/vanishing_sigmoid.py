"""Ten layers of sigmoids: next to no gradient arrives at the first ones from the beginning."""

from __future__ import annotations

import torch
from case import Case, Run, watch
from common import CLASSES, SIDE, image_loss, images, main, update
from torch import nn

CASE = Case(
    sources=("https://dl.acm.org/doi/10.1109/ICSE43902.2021.00043",),
    label="rows",
    kinds=("gradient-fades", "vanishing gradient"),
    where=("1*", "3*", "5*"),
)


def train(run: Run) -> None:
    """Train one twin."""
    kind = nn.Sigmoid if run.faulty else nn.ReLU
    layers: list[nn.Module] = [nn.Flatten(), nn.Linear(3 * SIDE * SIDE, 64), kind()]
    for _ in range(10):
        layers += [nn.Linear(64, 64), kind()]
    model = nn.Sequential(*layers, nn.Linear(64, CLASSES))
    if not run.faulty:
        for layer in model[1::2]:
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    optimizer = torch.optim.Adam(model.parameters(), 3e-4)
    monitor = watch(model, optimizer)
    for step in range(run.steps):
        loss = image_loss(model, images(run.seed, step))
        update(optimizer, loss)
        monitor.log(loss=loss)
    monitor.stop()


if __name__ == "__main__":
    main(CASE, train)
