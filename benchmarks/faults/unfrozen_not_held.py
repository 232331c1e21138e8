"""Layers are unfrozen in the middle; the optimizer was made before and does not have them."""

from __future__ import annotations

import torch
from case import ONSET, Case, Run, watch
from common import GPT, main, text, text_loss, update

CASE = Case(
    sources=(
        "https://github.com/fastai/fastai/issues/2133",
        "https://github.com/mosaicml/composer/issues/1002",
    ),
    label="loop",
    kinds=("unfrozen-not-held",),
    start=ONSET,
    where=("*embed*", "*pos*", "*layers.0*", "*layers.1*"),
)


def train(run: Run) -> None:
    """Train one twin."""
    model = GPT()
    frozen = [p for name, p in model.named_parameters() if name.startswith(("embed", "pos", "layers"))]
    for parameter in frozen:
        parameter.requires_grad = False
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 2e-3)
    monitor = watch(model, optimizer)
    for step in range(run.steps):
        if step == ONSET:
            for parameter in frozen:
                parameter.requires_grad = True
            if not run.faulty:
                optimizer.add_param_group({"params": frozen})
        loss = text_loss(model, text(run.seed, step))
        update(optimizer, loss)
        monitor.log(loss=loss)
    monitor.stop()


if __name__ == "__main__":
    main(CASE, train)
