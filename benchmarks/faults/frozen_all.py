"""Fine-tuning in which the last layer, all that the optimizer holds, is frozen with the rest."""

from __future__ import annotations

import torch
from case import Case, Run, watch
from common import CNN, image_loss, images, main, update

CASE = Case(
    sources=("https://discuss.pytorch.org/t/84911", "https://arxiv.org/abs/2506.14813"),
    label="loop",
    kinds=("nothing-moves", "nothing-to-apply", "frozen parameter"),
)


def train(run: Run) -> None:
    """Train one twin."""
    model = CNN()
    for name, parameter in model.named_parameters():
        parameter.requires_grad = name.startswith("bn") or (name.startswith("fc") and not run.faulty)
    optimizer = torch.optim.Adam(model.fc.parameters(), 1e-2)
    monitor = watch(model, optimizer)
    for step in range(run.steps):
        loss = image_loss(model, images(run.seed, step))
        update(optimizer, loss)
        monitor.log(loss=loss)
    monitor.stop()


if __name__ == "__main__":
    main(CASE, train)
