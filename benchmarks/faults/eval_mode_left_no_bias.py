"""As ``eval_mode_left``, with convolutions that have no bias, as in ResNets."""

from __future__ import annotations

import torch
from case import ONSET, Case, Run, watch
from common import CNN, image_loss, images, main, update

CASE = Case(
    sources=("https://github.com/HuiZeng/Grid-Anchor/issues/2", "https://github.com/fartashf/vsepp/issues/4"),
    label="loop",
    kinds=("root-not-trained",),
    start=ONSET,
)


def train(run: Run) -> None:
    """Train one twin."""
    model = CNN(dropout=0.2, bias=False)
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    monitor = watch(model, optimizer)
    for step in range(run.steps):
        loss = image_loss(model, images(run.seed, step))
        update(optimizer, loss)
        monitor.log(loss=loss)
        if step == ONSET - 1:
            model.eval()
            with torch.no_grad():
                image_loss(model, images(run.seed, 10_000))
            model.train(not run.faulty)
    monitor.stop()


if __name__ == "__main__":
    main(CASE, train)
