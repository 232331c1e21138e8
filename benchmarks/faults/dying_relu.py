"""One update at far too high a rate: the loss leaps, and within some steps all units are off for good."""

from __future__ import annotations

import torch
from case import LEAP, ONSET, Case, Run, watch
from common import CNN, image_loss, images, main, update

CASE = Case(
    sources=("https://arxiv.org/abs/1903.06733", "https://dl.acm.org/doi/10.1109/ICSE43902.2021.00043"),
    label="sentinel",
    kinds=(*LEAP, "gradient-gone", "dead layer", "vanishing gradient"),
    start=ONSET,
)


def train(run: Run) -> None:
    """Train one twin."""
    model = CNN(norm=False)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    monitor = watch(model, optimizer)
    for step in range(run.steps):
        optimizer.param_groups[0]["lr"] = 8.0 if run.faulty and step == ONSET else 0.05
        loss = image_loss(model, images(run.seed, step))
        update(optimizer, loss)
        monitor.log(loss=loss)
    monitor.stop()


if __name__ == "__main__":
    main(CASE, train)
